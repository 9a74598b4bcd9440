"""`tune`: run a new study, from the default configuration to the verdict."""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.text

from tuner.advice import advise
from tuner.cli.commands import CommandResult, options
from tuner.errors import UsageError
from tuner.metrics import objective as objectives
from tuner.report import terminal as end_of_study
from tuner.report.study import headline, study_notes, study_view
from tuner.settings.study import GROUPS
from tuner.settings.workload import RATE
from tuner.study import concurrency_sweep, study
from tuner.study.progress import Terminal
from tuner.study.study import StudyResult
from tuner.values.plain import to_plain
from tuner.values.study_record import StudyRecord

OF_WHOLE_SERVERS = ("kubernetes", "kserve", "compose")
OF_THE_RECORD = (
    *("model", "engine", "concurrency", "rate_per_s", "offered_per_s", "arrivals", "client_batch"),
    *("sampler", "objective"),
)
"""Facts about a study that its JSON contains, in this order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    for group in GROUPS:
        made = options.add_group(parser, group)
        if group == "target":
            load = options.action_of(made, "concurrency")
            load.type = options.parsing(concurrencies_of)
            load.metavar = "N[,N...]"
            load.help = f"{load.help}; several, comma-separated, run one study each"
    options.add_flag(
        parser,
        "--find-rate",
        "find the configuration with the highest open-loop rate that keeps --slo-ms, "
        "with up to eight rates per evaluation; same as --objective rate; default: no",
    )
    options.add_value(
        parser,
        "--for",
        "SYSTEM",
        "measure the server as this system limits it, as a whole: kubernetes, kserve or compose; "
        "same as --limits pod; default: each replica is limited",
        choices=OF_WHOLE_SERVERS,
    )
    told = "delete an existing study of the same name first; default: refuse"
    options.add_flag(parser, "--overwrite", told)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    if arguments.find_rate:
        if getattr(arguments, "objective", RATE) != RATE:
            raise UsageError(
                f"--find-rate: fixes the objective, so --objective {arguments.objective} "
                "is not allowed; give one of the two"
            )
        arguments.objective = RATE
    if getattr(arguments, "for") is not None:
        if getattr(arguments, "limits", "pod") != "pod":
            raise UsageError(
                f"--for {getattr(arguments, 'for')}: limits the whole server, so --limits "
                f"{arguments.limits} is not allowed; give one of the two"
            )
        arguments.limits = "pod"
    given: int | tuple[int, ...] | None = getattr(arguments, "concurrency", None)
    loads = given if isinstance(given, tuple) else ()
    if loads:
        arguments.concurrency = loads[0]
    settings = options.settings_of(arguments)
    if not loads:
        return make_result(study.tune(settings, overwrite=arguments.overwrite, terminal=terminal))
    if settings.is_open:
        raise UsageError(
            f"--concurrency {','.join(map(str, loads))}: several loads need a closed "
            "loop, without --rate"
        )
    return make_sweep_result(
        concurrency_sweep.tune(settings, loads, overwrite=arguments.overwrite, terminal=terminal)
    )


def concurrencies_of(text: str) -> int | tuple[int, ...]:
    """Parse one number (`20`) or several in ascending order (`1,5,20`), or raise ValueError."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a whole number, or several separated by commas, as 1,5,20"
        ) from None
    if list(found) != sorted(set(found)):
        raise ValueError(f"{text!r}: expected each load once, in ascending order")
    return found if len(found) > 1 else found[0]


def make_sweep_result(finished: Sequence[StudyResult]) -> CommandResult:
    """Return the result of several studies."""
    changed = list(concurrency_sweep.configuration_changes(finished))
    parts: list[rich.console.RenderableType] = []
    for one in finished:
        parts += [end_of_study.summary(one.record, one.files), ""]
    parts.append(rich.text.Text(_changes_in_words(finished, changed), style="bold"))
    return CommandResult(
        text=rich.console.Group(*parts),
        data={
            "studies": [as_json(one.record, one.files, stopped=one.stopped) for one in finished],
            "changes": to_plain(changed),
        },
    )


def _changes_in_words(
    finished: Sequence[StudyResult], changed: Sequence[concurrency_sweep.ConfigurationChange]
) -> str:
    if not changed:
        loads = ", ".join(str(one.record.concurrency) for one in finished)
        return f"One configuration is recommended for all of these loads: {loads}."
    places = "; ".join(
        f"between {one.below} and {one.above} ({', '.join(one.knobs)})" for one in changed
    )
    return f"The recommended configuration changes with the concurrency {places}."


def make_result(finished: StudyResult) -> CommandResult:
    """Return the result of a study."""
    return CommandResult(
        text=end_of_study.summary(finished.record, finished.files),
        data=as_json(finished.record, finished.files, stopped=finished.stopped),
    )


def as_json(
    record: StudyRecord, files: Mapping[str, pathlib.Path], *, stopped: str
) -> dict[str, Any]:
    """Return a study as a JSON object."""
    advice = advise(record) if record.is_finished else None
    overheads = [trial.overhead_s for trial in record.trials]
    best_trial = next(
        (t for t in record.trials if t.configuration == record.best and t.objective is not None),
        None,
    )
    return {
        "study": record.name,
        **{name: getattr(record, name) for name in OF_THE_RECORD},
        "second_objective": record.second,
        "pareto_front": to_plain(record.pareto_front),
        "trials": len(record.trials),
        "failed_trials": len(study_view.failed_trials(record.trials)),
        "stopped": stopped,
        "median_overhead_s": statistics.median(overheads) if overheads else None,
        "default": to_plain(record.default),
        "best": to_plain(record.best),
        "recommended": None if advice is None else dict(advice.configuration),
        "recommendation": None if advice is None else advice.reason,
        "best_seen": None
        if best_trial is None
        else objectives.find_objective(record.objective).of(best_trial),
        "headline": headline.headline(record),
        "verdict": finite(to_plain(record.verdict)),
        "open_loop": finite(to_plain(record.open_loop)),
        "confirmations": finite(to_plain(record.confirmations)),
        "failure_counts": to_plain(record.failure_counts),
        "notes": [*study_notes.warnings(record), *study_notes.remarks(record)],
        "files": {name: str(path) for name, path in files.items()},
    }


def finite(value: Any) -> Any:
    """Replace infinity and NaN with None, since JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
