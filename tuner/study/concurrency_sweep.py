"""Concurrency sweep: a study for each concurrency, each warm-started from the earlier ones.

The first study gets all of its trials, each later one half. The maximum time covers all.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import math
from collections.abc import Iterator, Sequence

from tuner.advice import advise
from tuner.report import console_text
from tuner.settings.study import StudySettings
from tuner.study import creation, study, targets, warm_start
from tuner.study.progress import Terminal
from tuner.study.study import StudyResult
from tuner.values.configuration import Configuration

LATER_SHARE = 0.5
"""Share of the trials for each later study."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChange:
    """Neighbouring concurrencies with different recommendations."""

    below: int
    """Concurrency."""
    above: int
    knobs: tuple[str, ...]
    """Knobs that differ."""


def tune(
    settings: StudySettings,
    concurrencies: Sequence[int],
    *,
    overwrite: bool,
    terminal: Terminal,
) -> tuple[StudyResult, ...]:
    """Run a study for each concurrency.

    Args:
        settings: of each, without the concurrency.
        concurrencies: ascending.
        overwrite: whether studies of the same names are deleted first.

    Raises:
        UsageError, TunerError, Interrupted: as for one study; finished ones are saved.
    """
    card = targets.find_target(settings.target).spec
    base = settings.store.study
    if base is None:
        made = creation.name_study(settings, card, now=dt.datetime.now().astimezone())
        base = str(made.store.study).replace(f"c{settings.target.concurrency}-", "", 1)
    done: list[StudyResult] = []
    for place, concurrency in enumerate(concurrencies):
        mine = _of_level(settings, concurrency, f"{base}-c{concurrency}", is_first=not done)
        mine = _learning(mine, [one.record.name for one in done])
        share = settings.search.max_time_s / len(concurrencies)
        mine = dataclasses.replace(mine, search=dataclasses.replace(mine.search, max_time_s=share))
        console_text.write_line(
            terminal.console,
            f"load {place + 1} of {len(concurrencies)}: concurrency {concurrency}",
            style="bold",
        )
        done.append(study.tune(mine, overwrite=overwrite, terminal=terminal))
    return tuple(done)


def configuration_changes(finished: Sequence[StudyResult]) -> Iterator[ConfigurationChange]:
    """Yield the changes of the recommendation between concurrencies."""
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


def _of_level(
    settings: StudySettings, concurrency: int, name: str, *, is_first: bool
) -> StudySettings:
    search = settings.search
    if not is_first:
        trials = max(2, math.ceil(LATER_SHARE * search.trials))
        initial = None if search.initial is None else min(search.initial, trials)
        search = dataclasses.replace(search, trials=trials, initial=initial)
    return dataclasses.replace(
        settings,
        target=dataclasses.replace(settings.target, concurrency=concurrency),
        search=search,
        store=dataclasses.replace(settings.store, study=name),
    )


def _learning(settings: StudySettings, before: Sequence[str]) -> StudySettings:
    """Return the settings with a warm start from earlier studies."""
    if not before or settings.search.learn_from == warm_start.NONE:
        return settings
    names = ",".join(reversed(before[-warm_start.MAX_STUDIES :]))
    search = dataclasses.replace(settings.search, learn_from=names)
    return dataclasses.replace(settings, search=search)
