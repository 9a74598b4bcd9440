"""`tune export` of a finished study: what it writes, and what it refuses to touch."""

from __future__ import annotations

import json
import pathlib

import pytest

from serving import zoo
from tests.fakes import benches, studies
from tests.fakes.benches import ToyBench
from tuner.cli import main
from tuner.launching.engine import EngineInfo
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.study import study_files
from tuner.study.budget import Budget
from tuner.study.search import Search
from tuner.values.verification_state import VerificationState

SERVED = EngineInfo(model="resnet", kind="onnx", signature=studies.SIGNATURE, limits="enforced")


def finished(runs: pathlib.Path, model: str = "resnet") -> None:
    """Make the folder of a study `s` that has come to its end."""
    target = TargetSettings(model=model, concurrency=benches.CONCURRENCY)
    folder = RunFolder(runs, "s")
    settings = StudySettings(target=target)
    folder.create(settings.as_nested(), {"host": {"cores": 4}})
    arena = benches.arena()
    facts = study_files.facts_of(settings, arena, SERVED)
    store = StudyStore.create("s", database=folder.database, url=None, facts=facts)
    search = Search(
        store=store,
        problem=arena,
        evaluator=ToyBench(),
        budget=Budget(trials=4, initial=4, max_time_s=600, load_s=2.5, pairs=4),
        objective="mean",
        limits=(),
        stop_ei=0.0,
        keep_in=folder,
    )
    search.prepare(SearchSettings(sampler="random", trials=4, initial=4))
    while search.stop_reason(0.0) is None:
        search.step()
    ending = VerificationState(stopped="the budget is used up", best=search.recommend(), pairs=0)
    study_files.save_verification_state(folder, ending)
    study_files.save_end(folder, ending, None)


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a finished study of the bundled resnet."""
    runs = tmp_path_factory.mktemp("runs")
    finished(runs)
    return runs


def export(runs: pathlib.Path, *arguments: object) -> int:
    """Run the command on the study."""
    return main.main(["export", "s", "--runs-dir", str(runs), *map(str, arguments)])


def test_a_repository_of_triton_is_written_whole(
    runs: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its configuration, and a copy of the model; each file is named on standard output."""
    out = tmp_path / "new" / "models"
    assert export(runs, "--to", "triton", "--out", out) == 0
    config, model = out / "resnet" / "config.pbtxt", out / "resnet" / "1" / "model.onnx"
    assert capsys.readouterr().out.split() == [str(config), str(model)]
    path = zoo.find("resnet").path
    assert path is not None
    assert model.read_bytes() == path.read_bytes()
    assert f"--model-repository={out}" in config.read_text(encoding="utf-8")
    assert not list(out.rglob("*.partial"))
    assert export(runs, "--to", "triton", "--out", out, "--force") == 0
    assert not capsys.readouterr().err


def test_a_single_file_is_printed(runs: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a pipe to kubectl takes it."""
    assert export(runs, "--to", "kubernetes") == 0
    said = capsys.readouterr()
    assert "kind: Deployment" in said.out
    assert said.err.startswith("warning: in the study each of 1 replica had")
    assert export(runs, "--to", "kubernetes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"].keys() == {"kubernetes.yaml"}


def test_several_files_need_a_folder(
    runs: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are named in the line that asks for one."""
    assert export(runs, "--to", "ray") == 2
    err = capsys.readouterr().err
    assert "--to ray writes 2 files (ray.yaml, luthier_app.py)" in err
    assert "--out DIR" in err


def test_nothing_is_written_over_and_nothing_beside_it(
    runs: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file that is there keeps the others away, unless --force is given."""
    (tmp_path / "best.yaml").write_text("mine")
    assert export(runs, "--to", "compose", "--out", tmp_path) == 2
    assert "best.yaml exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["best.yaml"]
    assert (tmp_path / "best.yaml").read_text() == "mine"
    assert export(runs, "--to", "compose", "--out", tmp_path, "--force") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"best.yaml", "compose.yaml"}
    assert (tmp_path / "best.yaml").read_text() != "mine"


def test_what_fails_half_way_leaves_no_file(
    runs: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two files cannot be written: the first is not there either."""
    (tmp_path / "luthier_app.py.partial").mkdir()
    assert export(runs, "--to", "ray", "--out", tmp_path) != 0
    assert f"{tmp_path} cannot be written: Is a directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["luthier_app.py.partial"]


def test_a_model_that_is_gone_is_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings alone can still be had."""
    finished(tmp_path, str(tmp_path / "gone.onnx"))
    assert export(tmp_path, "--to", "compose", "--out", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"--to compose needs the model of the study: model {tmp_path}/gone.onnx" in err
    assert not (tmp_path / "out").exists()
    assert export(tmp_path) == 0
