"""Header of a study's page: verdict, metrics, cautions and both configurations."""

from __future__ import annotations

import pathlib
import shlex

from tuner.advice import advise
from tuner.metrics import objective as objectives
from tuner.report import formatting, open_loop, tables
from tuner.report.markup import Child, Markup, bullets, element, join, soft, verdict
from tuner.report.study import headline, study_notes, study_view
from tuner.settings.recommended_commands import serve_command
from tuner.values.study_record import StudyRecord

WARNING_WORDS = ("synthetic", "not enforced", "not measured", "interrupted", "stopped")


def answer(study: StudyRecord) -> Markup:
    """Return everything above the first section."""
    configurations = element("h3", "Configuration"), tables.configurations(study)
    measured = *_measured_section(study), *open_loop.section(study)
    halves = element("div", *configurations), element("div", *measured)
    return join(
        (
            element("h1", f"{study.model} at {study_view.workload(study)}"),
            soft(_facts(study)),
            _verdict(study),
            _titled("Where it runs (tune confirm)", headline.confirmations(study)),
            _cards(study),
            notes(study_notes.warnings(study)),
            _inputs(study),
            element("div", *halves, class_="halves"),
            remarks(study_notes.remarks(study)),
            _use(study),
        )
    )


def _facts(study: StudyRecord) -> str:
    tried = formatting.plural(len(study.trials), "trial")
    took = "" if study.used_s is None else f", {formatting.duration(study.used_s)} in all"
    engine = f"engine {study.engine}, " if study.is_of_other_engine else ""
    if study.spawner == "docker":
        engine = "replicas in containers, "
    if study.limits == "pod":
        engine = "limits of the whole server, "
    names = [name for name in (study.objective, study.second) if name is not None]
    labels = " and ".join(objectives.find_objective(name).label for name in names)
    limits = study_view.limits(study)
    kept = "" if limits is None else f" A solution keeps to {limits}."
    return (
        f"Study {study.name}: {study_view.models(study)}{engine}objective {labels}, {study_view.search(study)}, "
        f"{tried}{took}.{kept}"
    )


def notes(texts: tuple[str, ...]) -> Markup | None:
    """Return cautions, with important ones in bold."""
    items = [
        element("strong", text) if any(word in text.lower() for word in WARNING_WORDS) else text
        for text in texts
    ]
    made = bullets(items)
    return element("div", element("b", "Read with care"), made, class_="notes") if made else None


def remarks(texts: tuple[str, ...]) -> Markup | None:
    """Return informational notes."""
    return _titled("Notes", texts)


def _inputs(study: StudyRecord) -> Markup | None:
    if study.sent is None:
        return None
    return _titled("What was sent", (*study.sent.lines, f"source: {study.sent.source}"))


def _titled(title: str, items: tuple[str, ...]) -> Markup | None:
    made = bullets(items, class_="soft")
    return join((element("h3", title), made)) if made else None


def _verdict(study: StudyRecord) -> Markup:
    numbers: str | None = None
    if (found := study.verdict) is not None:
        objective = objectives.find_objective(study.objective)
        numbers = (
            f"{objective.label.capitalize()}, best over default: "
            f"{formatting.ratio(found.ratio, found.interval)}"
            f"{'' if found.interval.is_vague else ', 95 % interval'}; on another day "
            f"{formatting.interval(found.between_session_interval)}; from "
            f"{formatting.plural(len(found.best), 'pair')} of evaluations that alternate."
        )
        if (second := found.second) is not None:
            label = objectives.find_objective(second.objective).label.capitalize()
            numbers += f" {label}: {formatting.ratio(second.ratio, second.interval)}."
    return verdict(headline.headline(study), numbers, tone=headline.tone(study))


def _cards(study: StudyRecord) -> Markup | None:
    has_best = study_view.has_two_arms(study)
    sides = [study_view.arm_measurements(study, role) for role in study_view.ARMS]
    if not any(side.measurements for side in sides):
        return None
    made = []
    for name in study_view.figures_of_merit(study):
        objective = objectives.find_objective(name)
        middles = [side.figure(objective.field).middle for side in sides]
        found = study_view.compare_metric(study, name) if has_best else None
        tone = None
        if found is not None and found.outcome != "no difference shown":
            tone = found.outcome
        shown: list[Child] = [element("span", formatting.number(middles[0]))]
        below = "default"
        if has_best:
            shown += [" → ", element("span", formatting.number(middles[1]), class_=tone)]
            below = _plain_ratio(*middles)
        if found is not None:
            ratio = formatting.ratio(found.ratio, found.interval)
            below = f"best over default {ratio}" + (f": {tone}" if tone else "")
        shown.append(element("span", f" {objective.unit}", class_="unit"))
        parts: dict[str, list[Child]] = {"name": [objective.label], "pair": shown, "ratio": [below]}
        lines = (element("div", *content, class_=kind) for kind, content in parts.items())
        made.append(element("div", *lines, class_="card"))
    return element("div", *made, class_="cards")


def _plain_ratio(default: float, best: float) -> str:
    if not (default > 0 and best > 0):
        return f"no figure of the {'default' if not default > 0 else 'best'}"
    return f"best over default × {formatting.number(best / default)}, no interval"


def _measured_section(study: StudyRecord) -> tuple[Markup, ...]:
    shown = tables.side_by_side(study)
    if shown is None:
        return (element("h3", "Measured"), element("p", "No configuration could be measured."))
    if study_view.arm_measurements(study, "default").is_verified:
        title = "Measured side by side"
        caption = (
            "Default and best evaluated again after the search, alternating. Geometric "
            "mean over the evaluations; in brackets the smallest and the largest. The "
            "p99 is that of all requests together, with its 95 % interval and the "
            "effective number of requests (n)."
        )
    else:
        title = "Measured in the search, not re-measured"
        caption = (
            "The best was chosen for its good figure, so it looks better than it is: the "
            "luckiest of 30 equal configurations lies two standard deviations off their "
            "mean."
        )
    return element("h3", title), shown, soft(caption)


def _use(study: StudyRecord) -> Markup | None:
    if not study.is_finished or advise(study) is None:
        return None
    file = pathlib.PurePath(study.folder) / "best.yaml"
    parts = [element("p", line) for line in headline.advice(study)]
    if study.is_of_other_engine:
        text = f"The knobs, and what they make of the engine file, stand in {file}."
        parts.append(element("p", text))
    else:
        parts.append(_code(serve_command(study.served_model, file, is_trusted=study.is_trusted)))
        if study.shared is not None:
            parts.append(element("p", "Its models are deployed then:"))
            parts.append(_code(f"sh {shlex.quote(str(file.with_name('deploy.sh')))}"))
    if (other := headline.to_try(study)) is not None:
        parts += [element("p", headline.TO_TRY), _code(other)]
    return join((element("h3", "Use it"), *parts))


def _code(command: str) -> Markup:
    return element("pre", element("code", command))
