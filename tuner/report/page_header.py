"""Header of a study's page: verdict, metrics, cautions and both configurations."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Mapping

from tuner.advice import advise
from tuner.metrics import objective as objectives
from tuner.report import formatting, open_loop, tables
from tuner.report.markup import Markup, bullets, element, join
from tuner.report.study import headline, study_notes, study_view
from tuner.settings.recommended_commands import serve_command
from tuner.values.study_record import StudyRecord
from tuner.values.verdict import VerdictOutcome

WARNING_WORDS = ("synthetic", "not enforced", "not measured", "interrupted", "stopped")
SHOWN: Mapping[VerdictOutcome, str | None] = {
    "better": "better",
    "worse": "worse",
    "no difference shown": None,
}


def answer(study: StudyRecord) -> Markup:
    """Everything above the first section."""
    objective = objectives.find_objective(study.objective)
    tried = formatting.plural(len(study.trials), "trial")
    took = "" if study.used_s is None else f", {formatting.duration(study.used_s)} in all"
    engine = f"engine {study.engine}, " if study.is_of_other_engine else ""
    if study.spawner == "docker":
        engine = "replicas in containers, "
    load = study_view.workload(study)
    label = objective.label
    if study.second is not None:
        label += f" and {objectives.find_objective(study.second).label}"
    line = (
        f"Study {study.name}: {study_view.models(study)}{engine}objective {label}, {study_view.search(study)}, "
        f"{tried}{took}."
    )
    if (limits := study_view.limits(study)) is not None:
        line += f" A solution keeps to {limits}."
    return join(
        (
            element("h1", f"{study.model} at {load}"),
            element("p", line, class_="soft"),
            _verdict(study),
            _cards(study),
            notes(study_notes.warnings(study)),
            _inputs(study),
            element(
                "div",
                element("div", element("h3", "Configuration"), tables.configurations(study)),
                element("div", *_measured_section(study), *open_loop.section(study)),
                class_="halves",
            ),
            remarks(study_notes.remarks(study)),
            _use(study),
        )
    )


def notes(texts: tuple[str, ...]) -> Markup | None:
    """Cautions, important ones in bold."""
    items = [
        element("strong", text) if any(word in text.lower() for word in WARNING_WORDS) else text
        for text in texts
    ]
    made = bullets(items)
    return element("div", element("b", "Read with care"), made, class_="notes") if made else None


def remarks(texts: tuple[str, ...]) -> Markup | None:
    """Notes for information."""
    made = bullets(texts, class_="soft")
    return join((element("h3", "Notes"), made)) if made else None


def _inputs(study: StudyRecord) -> Markup | None:
    if study.sent is None:
        return None
    told = bullets((*study.sent.lines, f"source: {study.sent.source}"), class_="soft")
    return join((element("h3", "What was sent"), told))


def _verdict(study: StudyRecord) -> Markup:
    class_ = f"verdict {headline.tone(study) or ''}".strip()
    numbers: str | None = None
    if study.verdict is not None:
        objective = objectives.find_objective(study.objective)
        shown = formatting.ratio(study.verdict.ratio, study.verdict.interval)
        numbers = (
            f"{objective.label.capitalize()}, best over default: {shown}"
            f"{'' if study.verdict.interval.is_vague else ', 95 % interval'}; on another day "
            f"{formatting.interval(study.verdict.between_session_interval)}; from "
            f"{formatting.plural(len(study.verdict.best), 'pair')} of launches that alternate."
        )
    if study.verdict is not None and study.verdict.second is not None:
        second = study.verdict.second
        label = objectives.find_objective(second.objective).label.capitalize()
        numbers = f"{numbers} {label}: {formatting.ratio(second.ratio, second.interval)}."
    sentence = element("span", headline.headline(study))
    small = element("span", numbers, class_="soft") if numbers else None
    return element("p", sentence, element("br") if small else None, small, class_=class_)


def _cards(study: StudyRecord) -> Markup | None:
    sides = {role: study_view.arm_measurements(study, role) for role in study_view.ARMS}
    has_best = study_view.has_two_arms(study)
    if not any(side.measurements for side in sides.values()):
        return None
    made = []
    for name in study_view.figures_of_merit(study):
        objective = objectives.find_objective(name)
        field = objective.field
        found = study_view.compare_metric(study, name) if has_best else None
        shown = None if found is None else SHOWN[found.outcome]
        pair = [
            element("span", formatting.number(sides[role].figure(field).middle), class_=colour)
            for role, colour in zip(study_view.ARMS[: 1 + has_best], (None, shown), strict=False)
        ]
        between: list[Markup | str] = [pair[0]]
        if has_best:
            between += [" → ", pair[1]]
        if found is not None:
            ratio = formatting.ratio(found.ratio, found.interval)
            below = f"best over default {ratio}" + (f": {shown}" if shown else "")
        else:
            below = _plain_ratio(sides, field) if has_best else "default"
        made.append(
            element(
                "div",
                element("div", objective.label, class_="name"),
                element(
                    "div",
                    *between,
                    element("span", f" {objective.unit}", class_="unit"),
                    class_="pair",
                ),
                element("div", below, class_="ratio"),
                class_="card",
            )
        )
    return element("div", *made, class_="cards")


def _plain_ratio(arms: dict[study_view.ArmName, study_view.ArmMeasurements], field: str) -> str:
    default, best = (arms[role].figure(field).middle for role in study_view.ARMS)
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
    return element("h3", title), shown, element("p", caption, class_="soft")


def _use(study: StudyRecord) -> Markup | None:
    if not study.is_finished or advise(study) is None:
        return None
    file = pathlib.PurePath(study.folder) / "best.yaml"
    parts = [element("p", line) for line in headline.advice(study)]
    if study.is_of_other_engine:
        text = f"The knobs, and what they make of the engine file, stand in {file}."
        parts.append(element("p", text))
    else:
        parts.append(
            element(
                "pre",
                element(
                    "code", serve_command(study.served_model, file, is_trusted=study.is_trusted)
                ),
            )
        )
        if study.shared is not None:
            command = f"sh {shlex.quote(str(file.with_name('deploy.sh')))}"
            parts.append(element("p", "Its models are deployed then:"))
            parts.append(element("pre", element("code", command)))
    if (other := headline.to_try(study)) is not None:
        parts += [element("p", headline.TO_TRY), element("pre", element("code", other))]
    return join((element("h3", "Use it"), *parts))
