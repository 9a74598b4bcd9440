"""A study on disk whose search is done: eight launches of the toy bench, and no end."""

from __future__ import annotations

import pathlib

from tests.fakes import benches, studies
from tests.fakes.benches import ToyBench
from tuner.launching.engine import EngineInfo
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import study_files
from tuner.study.budget import Budget
from tuner.study.search import Search

SERVED = EngineInfo(model="toy", kind="onnx", signature=studies.SIGNATURE, limits="enforced")
SETTINGS = StudySettings(target=TargetSettings(model="toy", concurrency=benches.CONCURRENCY))


def searched(runs: pathlib.Path, name: str = "s") -> tuple[RunFolder, StudyStore, Search]:
    """The study in a folder of `runs`, its store and its search."""
    folder = RunFolder(runs, name)
    folder.create(SETTINGS.as_nested(), {"host": {"cores": 4}})
    arena = benches.arena()
    store = StudyStore.create(
        name,
        database=folder.database,
        url=None,
        facts=study_files.facts_of(SETTINGS, arena, SERVED),
    )
    search = Search(
        store=store,
        problem=arena,
        evaluator=ToyBench(),
        budget=Budget(trials=8, initial=8, max_time_s=600, load_s=2.5, pairs=4),
        objective="mean",
        limits=(),
        stop_ei=0.0,
        keep_in=folder,
    )
    search.prepare(SearchSettings(sampler="random", trials=8, initial=8))
    while search.stop_reason(0.0) is None:
        search.step()
    return folder, store, search
