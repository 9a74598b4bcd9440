"""A configuration of a study as settings of the serving core, for `python -m serving --settings`.

In: `StudyRecord`, and the `Advice` what to run. Out: YAML text with a comment head that says where
it comes from and what was measured. Knobs of the study that are not settings of the server (the
GPU's clock) stand in the head only. Names in comments are cut to one line of printable characters:
a study's name must not become a setting.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Mapping

import yaml

from serving.settings import KNOBS
from tuner import objective as objectives
from tuner.advice import Advice, export_of_best, failures
from tuner.settings import load_in_words, serve_command
from tuner.values import Configuration, Interval, Measurement, StudyRecord, Value

FILE_NAME = "best.yaml"
IN_EVERY_HEAD = ("mean", "p99", "throughput")
"""Objectives whose figures stand in the head of every file; another one comes before them."""


def files(record: StudyRecord, advice: Advice, place: pathlib.PurePath) -> dict[str, str]:
    """The one file of this target."""
    file = place.with_name(f"{place.name}.yaml")
    return {file.name: settings_text(record, advice, file)}


def settings_text(record: StudyRecord, advice: Advice, file: pathlib.PurePath | None = None) -> str:
    """Text of the settings; `serving.settings.resolve(file=...)` reads it as it is.

    Args:
        record: of the study.
        advice: what to run.
        file: where the text will stand; None: `best.yaml` in the study's folder.
    """
    file = pathlib.PurePath(record.folder) / FILE_NAME if file is None else file
    head = "\n".join(f"# {_one_line(line)}".rstrip() for line in _head(record, advice, file))
    body = yaml.safe_dump(_nested(advice.configuration), sort_keys=False, allow_unicode=True)
    return f"{head}\n\n{body}"


def _nested(configuration: Configuration) -> dict[str, dict[str, Value]]:
    """The settings among the knobs, one mapping per group, in the order of the settings' page."""
    tree: dict[str, dict[str, Value]] = {}
    for name in KNOBS:
        if name in configuration:
            group, field = name.split(".", 1)
            tree.setdefault(group, {})[field] = configuration[name]
    return tree


def _head(record: StudyRecord, advice: Advice, file: pathlib.PurePath) -> Iterable[str]:
    load = load_in_words(record.concurrency, record.client_batch)
    yield f"Settings for {record.model} at {load}, by `tune`."
    yield f"Study {record.name}: {len(record.trials)} trials, sampler {record.sampler}."
    yield f"Use: {serve_command(record.target, file)}"
    yield ""
    yield advice.reason
    command = export_of_best(record)
    if command is not None and advice.configuration == record.default:
        yield f"The best that was found, to try all the same: {command}"
    yield ""
    yield from _measured(record, advice.configuration)
    configuration = advice.configuration
    others = {name: value for name, value in configuration.items() if name not in KNOBS}
    if others:
        yield ""
        yield "Searched as well, but not a setting of the server; set it where it belongs:"
        for name, value in others.items():
            yield f"  {name}: {value}"
    notes = (*failures(record), *record.notes)
    if notes:
        yield ""
        yield "Notes:"
        for note in notes:
            yield f"  {note}"


def _measured(record: StudyRecord, chosen: Configuration) -> Iterable[str]:
    verdict = record.verdict
    if verdict is None or chosen not in (record.default, record.best):
        afresh = (
            "Too few pairs of fresh starts worked" if record.fresh_starts else "Not re-measured"
        )
        yield f"{afresh}; what the search saw, which flatters what it chose:"
        sides = {"default": record.default, "best": record.best}
        if chosen not in sides.values():
            sides["these settings"] = chosen
        if record.best == record.default:
            del sides["best"]
        for role, configuration in sides.items():
            if configuration is not None:
                yield f"  {role}: {_figures(record, _launches(record, configuration))}"
        return
    yield f"Verdict: {verdict.text}"
    yield (
        f"{record.objective}, best over default: {verdict.ratio:.3g} "
        f"({_interval(verdict.interval)})"
    )
    yield f"  best: {_figures(record, verdict.best)}"
    yield f"  default: {_figures(record, verdict.default)}"


def _launches(record: StudyRecord, configuration: Mapping[str, Value]) -> tuple[Measurement, ...]:
    return tuple(
        trial.measurement
        for trial in record.trials
        if trial.measurement is not None and trial.configuration == configuration
    )


def _figures(record: StudyRecord, launches: tuple[Measurement, ...]) -> str:
    """Geometric means over launches, as in the report."""
    if not launches:
        return "not measured"
    mean, p99, throughput = (
        _geometric_mean([getattr(launch, field) for launch in launches])
        for field in ("mean_ms", "p99_ms", "throughput_per_s")
    )
    figures = f"mean {mean:.4g} ms, p99 {p99:.4g} ms, {throughput:.4g} requests/s"
    objective = objectives.named(record.objective)
    if objective.name not in IN_EVERY_HEAD:
        value = _geometric_mean([objective.value(launch) for launch in launches])
        figures = f"{objective.name} {value:.4g} {objective.unit}, {figures}"
    count = f"{len(launches)} launch" + ("es" if len(launches) > 1 else "")
    return f"{figures} ({count})"


def _geometric_mean(values: list[float]) -> float:
    known = [value for value in values if value > 0]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan


def _interval(interval: Interval) -> str:
    if interval.is_vague:
        return "too few pairs to tell"
    low, high = (
        "unknown" if end is None else f"{end:.3g}" for end in (interval.low, interval.high)
    )
    return f"95 % interval {low} to {high}"


def _one_line(text: str) -> str:
    """Printable, on one line; leading spaces stay."""
    indent = len(text) - len(text.lstrip(" "))
    words = " ".join(text.split())
    return " " * indent + "".join(c if c.isprintable() else "?" for c in words)
