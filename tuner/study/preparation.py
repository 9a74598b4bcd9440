"""Preparation of a study: check inputs, start the engine, bind the space to the machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from serving.accelerator import clocks
from serving.model_spec import ModelSpec
from serving.tensors.input_values import SMALL
from tuner.engines.description import OtherEngine, ScenarioEngine
from tuner.errors import LaunchFailed, UsageError
from tuner.evaluation import probe
from tuner.evaluation.evaluator import FIRST_RATE_PER_S, Evaluator
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.evaluation.scenarios import tuning
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.launching import machine
from tuner.launching.engine import EngineInfo
from tuner.load_generator.payloads import Payloads
from tuner.measurement import meters
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import prices
from tuner.report import console_text
from tuner.sampling import registry
from tuner.settings.study import StudySettings
from tuner.settings.workload import RATE
from tuner.space import files
from tuner.space.environment import VARIANT, Environment
from tuner.study import problem, targets
from tuner.study.budget import Budget
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Terminal
from tuner.study.search import sampler_of
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE

BATCHING_KNOBS = ("batching.max_size", "batching.timeout_us", "batching.pad_to")
CACHE_KNOB = "cache.capacity_mb"


def make_evaluator(
    settings: StudySettings, card: ModelSpec, engine: OtherEngine | None, terminal: Terminal
) -> Evaluator:
    """Return a study's evaluator; start nothing.

    Raises:
        WrongUse: payload, price file or trace is unreadable.
    """

    def say(text: str) -> None:
        console_text.write_line(terminal.console, text, style="yellow")

    return Evaluator(
        model=settings.target.model,
        concurrency=settings.target.in_flight,
        settings=settings.measurement,
        open_load=make_open_loop_plan(
            settings.target,
            seed=settings.search.seed,
            rate_per_s=FIRST_RATE_PER_S if settings.measurement.objective == RATE else None,
        ),
        launcher=targets.launcher_of(engine, settings.target, card, say=say),
        prices=prices.read(settings.measurement.prices),
    )


def budget_of(settings: StudySettings, bench: Evaluator) -> Budget:
    """Return the study's budget.

    Another engine starts for each trial; a scenario's new server deploys all models. Both cost as
    much as the first start.
    """
    start_s = bench.start_s if settings.target.is_of_other_engine else None
    is_cut = bench.why_alone is None and bench.is_cut
    found = Budget.of(settings, start_s=start_s, is_cut=is_cut)
    if settings.target.scenario is None or bench.start_s is None:
        return found
    return dataclasses.replace(found, fresh_start_s=bench.start_s)


def needs_of(settings: StudySettings) -> EvaluationRequirements:
    """Return what each evaluation must measure and satisfy."""
    return EvaluationRequirements.of(settings.measurement)


def check_front(settings: StudySettings) -> None:
    """Reject two objectives for a sampler of one.

    Raises:
        WrongUse: names samplers of two.
    """
    sampler = settings.search.sampler
    if settings.measurement.second is not None and not registry.searches_fronts(sampler):
        able = [name for name in registry.NAMES if registry.searches_fronts(name)]
        raise UsageError(
            f"--objective {settings.measurement.objective}: the sampler {sampler} handles "
            f"one objective; choose one of {', '.join(able)}"
        )


def prepare(
    bench: Evaluator,
    settings: StudySettings,
    card: ModelSpec,
    engine: OtherEngine | None,
    terminal: Terminal,
    *,
    goes_on: bool = False,
) -> tuple[ProblemStatement, Payloads | ScenarioRequests, EngineInfo]:
    """Check the inputs, start the engine, and bind the space to this machine.

    Args:
        goes_on: the study has already searched the given space.

    Raises:
        WrongUse: an input is invalid.
        LaunchFailed: the model does not start.
    """
    target = settings.target
    check_front(settings)
    if isinstance(engine, ScenarioEngine):
        tuning.check(
            targets.scenario_of(engine),
            seconds=settings.measurement.warmup_s + settings.measurement.measured_s,
        )
    _check_energy(settings)
    for what in clocks.restore_stale().done:
        console_text.write_line(terminal.console, f"restored the {what}")
    environment = problem.environment_of(target, machine.read(), card)
    known = targets.knob_schema_of(engine)
    text = targets.space_text_of(engine, target, card, goes_on=goes_on)
    source = target.space or f"{card.name}.yaml"

    def asked_of(text: str) -> str:
        text = problem.with_variants(text, target, card, source=source)
        return text if goes_on else problem.with_fixed(text, target, source=source, known=known)

    first: Configuration | None = None
    if text is not None:  # raises before anything starts
        wanted = asked_of(text)
        offered = problem.with_gpu(environment, text, is_tried=False)
        expected = problem.make_problem(
            wanted, offered, source=source, limits="enforced", known=known
        )
        problem.with_note_of_fixed(expected, target)
        sampler_of(settings.search, expected)
        first = None if engine is None else expected.default
    seed = settings.search.seed
    asked = None if target.scenario is None else f"--scenario {target.scenario}"
    served = start_target(bench, first, asked=asked)
    payloads = targets.payloads_of(engine, target, card, served, seed=seed)
    bench.send(payloads)
    if isinstance(payloads, Payloads) and payloads.sent is not None:
        for line in payloads.sent.lines:
            console_text.write_line(terminal.console, line)
    _check_energy(settings, served)
    environment = problem.with_gpu(environment, text, device=served.device)
    if text is None:
        text = _derive_space(bench, environment, served, terminal)
    text, note = asked_of(text), None
    if isinstance(engine, ScenarioEngine) and served.largest_mb is not None and not goes_on:
        scenario = targets.scenario_of(engine)
        space = files.parse(text, file=source, vocabulary=known)
        space, note = tuning.with_room(space, scenario, largest_mb=served.largest_mb)
        text = files.dump(space)
    arena = problem.make_problem(
        text, environment, source=source, limits=served.limits, known=known
    )
    arena = problem.with_note_of_fixed(arena, target)
    if note is not None:
        arena = dataclasses.replace(arena, notes=(*arena.notes, note))
    sampler_of(settings.search, arena)
    return arena, payloads, served


def _check_energy(settings: StudySettings, served: EngineInfo | None = None) -> None:
    """Reject an energy objective without counters.

    Raises:
        WrongUse: gives each device's reason.
    """
    if "energy" not in settings.measurement.names:
        return
    if served is not None and not served.is_here:
        raise UsageError(
            f"--objective energy: {served.engine} runs on another machine, whose energy "
            "cannot be measured from here; run `tune` there"
        )
    with meters.open_counters(gpu=served is None or served.device != "cpu") as found:
        if not found.counters:
            raise UsageError(
                f"--objective energy: energy cannot be measured here: {'; '.join(found.lacking)}"
            )


def start_target(
    bench: Evaluator, first: Configuration | None = None, *, asked: str | None = None
) -> EngineInfo:
    """Start the engine; errors name the model as given.

    Args:
        first: None: the engine's defaults.
        asked: option given instead of `--model`.

    Raises:
        WrongUse, LaunchFailed: the model does not start.
    """
    try:
        return bench.start(first)
    except LaunchFailed as error:
        raise LaunchFailed(
            error.cause, f"{asked or f'--model {bench.model}'}: {error.text}"
        ) from error


def notes_of(
    arena: ProblemStatement,
    payloads: Payloads | ScenarioRequests,
    served: EngineInfo,
    counted: Sequence[str] = (),
) -> Iterator[str]:
    """Yield notes on space, payloads, limits and energy."""
    yield from arena.notes
    if VARIANT in arena.space.names and arena.environment.variants:
        measured = (
            f"{name} {'not measured' if accuracy is None else format(accuracy, '.3g')}"
            for name, accuracy in arena.environment.variants
        )
        yield f"accuracy of the model's variants: {', '.join(measured)}"
    is_ours = served.engine == OUR_ENGINE
    batching = [knob.name for knob in arena.knobs if is_ours and knob.name in BATCHING_KNOBS]
    if served.whole:
        useless = f"{' and '.join(batching)} change nothing" if batching else ""
        told = useless or "the knobs of batching are left out"
        yield f"the model is served whole, one request at a time ({served.whole}): {told}"
    if payloads.is_synthetic:
        yield (
            f"the payloads are synthetic ({payloads.description}): real inputs may take a "
            "different time"
        )
    if isinstance(payloads, Payloads):
        for name in payloads.guessed:
            yield (
                f"input {name} is sent whole numbers from 0 to {SMALL}, as the range of "
                f"its values is unknown: set it with --values {name}=LOW..HIGH"
            )
    if served.limits != "enforced":
        yield f"limits: {served.limits}"
    if counted:
        yield f"energy counts {' and '.join(counted)}, each as a whole"
    is_searched = any(knob.name == CACHE_KNOB for knob in arena.knobs)
    if is_ours and (is_searched or arena.default.get(CACHE_KNOB)):
        yield (
            f"the search includes a response cache ({CACHE_KNOB}), and the same requests "
            f"repeat ({payloads.description}), so the hit rate is not that of your "
            "traffic: leave the knob out, or give requests that repeat as yours do "
            "(--payload)"
        )


def _derive_space(
    bench: Evaluator, environment: Environment, served: EngineInfo, terminal: Terminal
) -> str:
    text = f"no search space for {served.model}: deriving one with a probe of the model"
    console_text.write_line(terminal.console, text)
    return probe.text(bench, environment, served)
