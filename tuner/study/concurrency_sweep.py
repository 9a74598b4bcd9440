"""Concurrency sweep: a study at each concurrency, with a warm start from the earlier ones.

The first study gets all its trials, later ones get half. The maximum time covers all studies.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import math
from collections.abc import Iterator, Sequence

from tuner.advice import advise
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.study import creation, study, targets, warm_start
from tuner.study.progress import Terminal
from tuner.study.study import StudyResult
from tuner.values.configuration import Configuration

LATER_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """Neighbouring concurrencies whose recommendations differ."""

    below: int
    above: int
    knobs: tuple[str, ...]


def tune(
    settings: StudySettings,
    concurrencies: Sequence[int],
    *,
    overwrite: bool,
    terminal: Terminal,
) -> tuple[StudyResult, ...]:
    """Run a study at each concurrency.

    Raises:
        UsageError, TunerError, Interrupted: as for a single study; finished studies are saved.
    """
    card = targets.find_target(settings.target).spec
    base = settings.store.study
    if base is None:
        made = creation.name_study(settings, card, now=dt.datetime.now().astimezone())
        base = str(made.store.study).replace(f"c{settings.target.concurrency}-", "", 1)
    done: list[StudyResult] = []
    for place, concurrency in enumerate(concurrencies):
        share_s = settings.search.max_time_s / len(concurrencies)
        mine = dataclasses.replace(
            settings,
            target=dataclasses.replace(settings.target, concurrency=concurrency),
            search=_search_after(settings.search, [one.record.name for one in done], share_s),
            store=dataclasses.replace(settings.store, study=f"{base}-c{concurrency}"),
        )
        told = f"load {place + 1} of {len(concurrencies)}: concurrency {concurrency}"
        terminal.say(told, style="bold")
        done.append(study.tune(mine, overwrite=overwrite, terminal=terminal))
    return tuple(done)


def configuration_changes(finished: Sequence[StudyResult]) -> Iterator[ConfigurationChange]:
    """Yield the changes in the recommendation between concurrencies."""
    for one, other in itertools.pairwise(finished):
        before, after = _advised_configuration(one), _advised_configuration(other)
        if before is None or after is None:
            continue
        names = tuple(name for name in {**before, **after} if before.get(name) != after.get(name))
        if names:
            yield ConfigurationChange(
                below=one.record.concurrency, above=other.record.concurrency, knobs=names
            )


def _advised_configuration(finished: StudyResult) -> Configuration | None:
    found = advise(finished.record)
    return None if found is None else found.configuration


def _search_after(
    search: SearchSettings, before: Sequence[str], max_time_s: float
) -> SearchSettings:
    search = dataclasses.replace(search, max_time_s=max_time_s)
    if not before:
        return search
    trials = max(2, math.ceil(LATER_SHARE * search.trials))
    initial = None if search.initial is None else min(search.initial, trials)
    names = ",".join(reversed(before[-warm_start.MAX_STUDIES :]))
    is_alone = search.learn_from == warm_start.NONE
    return dataclasses.replace(
        search,
        trials=trials,
        initial=initial,
        learn_from=search.learn_from if is_alone else names,
    )
