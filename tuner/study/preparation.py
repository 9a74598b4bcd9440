"""Preparation of a study: check the inputs, start the engine, and bind the space to the machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from serving.accelerator import clocks
from serving.tensors.input_values import SMALL
from tuner.errors import LaunchFailed, UsageError
from tuner.evaluation import probe, request_source
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.open_loop import make_open_loop_plan
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.evaluation.workload import FIRST_RATE_PER_S
from tuner.launching import machine
from tuner.launching.engine import EngineInfo
from tuner.load_generator.payloads import Payloads
from tuner.measurement import meters
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import prices
from tuner.metrics.prices import Prices
from tuner.sampling import registry
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import RATE
from tuner.space import files, fixing
from tuner.space.environment import VARIANT, Environment
from tuner.space.files import SpaceFile
from tuner.space.space import SearchSpace
from tuner.study import problem
from tuner.study.budget import Budget
from tuner.study.problem import ProblemStatement
from tuner.study.progress import Terminal
from tuner.study.samplers import sampler_of
from tuner.study.target import Target
from tuner.values.configuration import Configuration
from tuner.values.study_record import OUR_ENGINE

BATCHING_KNOBS = ("batching.max_size", "batching.timeout_us", "batching.pad_to")
CACHE_KNOB = "cache.capacity_mb"
ENFORCED = "enforced"
"""Limits of each replica hold, which needs no note."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyInputs:
    """Checked inputs of a study; its engine has been started once."""

    settings: StudySettings
    target: Target
    problem: ProblemStatement
    payloads: Payloads | ScenarioRequests
    served: EngineInfo


def files_to_keep(settings: StudySettings, target: Target) -> dict[str, str]:
    """Return texts of files that a study reads once, by their names in its folder.

    Raises:
        UsageError: the prices are unreadable.
    """
    kept = dict(filter(None, [target.file_copy()]))
    if paid := prices.read(settings.measurement.prices).text:
        kept[prices.COPY] = paid
    return kept


def make_evaluator(
    settings: StudySettings, target: Target, terminal: Terminal, *, paid: Prices | None = None
) -> Evaluator:
    """Return a study's evaluator, or raise UsageError for unreadable prices or an invalid trace.

    Args:
        paid: prices; None to read the settings' file.
    """
    return Evaluator(
        model=settings.target.model,
        concurrency=settings.target.in_flight,
        settings=settings.measurement,
        open_load=make_open_loop_plan(
            settings.target,
            seed=settings.search.seed,
            rate_per_s=FIRST_RATE_PER_S if settings.measurement.objective == RATE else None,
        ),
        launcher=target.launcher(
            settings.target, say=functools.partial(terminal.say, style="yellow")
        ),
        prices=prices.read(settings.measurement.prices) if paid is None else paid,
    )


def budget_of(settings: StudySettings, evaluator: Evaluator) -> Budget:
    """Return the study's budget.

    An engine other than Luthier is started for each trial, and a new server for a scenario deploys
    all models; both take as long as the first start.
    """
    start_s = evaluator.start_s if settings.target.is_of_other_engine else None
    is_cut = evaluator.why_not_interleaved is None and evaluator.workload.uses_time_slices
    found = Budget.of(settings, start_s=start_s, uses_time_slices=is_cut)
    if settings.target.scenario is None or evaluator.start_s is None:
        return found
    return dataclasses.replace(found, fresh_start_s=evaluator.start_s)


def needs_of(settings: StudySettings) -> EvaluationRequirements:
    """Return what each evaluation must measure and satisfy."""
    return EvaluationRequirements.of(settings.measurement)


def check_front(settings: StudySettings) -> None:
    """Raise UsageError if there are two objectives but the sampler handles only one."""
    sampler = settings.search.sampler
    if settings.measurement.second is not None and not registry.searches_fronts(sampler):
        able = [name for name in registry.NAMES if registry.searches_fronts(name)]
        raise UsageError(
            f"--objective {settings.measurement.objective}: the sampler {sampler} handles "
            f"one objective; choose one of {', '.join(able)}"
        )


def prepare(
    evaluator: Evaluator,
    settings: StudySettings,
    target: Target,
    terminal: Terminal,
    *,
    goes_on: bool = False,
) -> StudyInputs:
    """Check the inputs, start the engine, and bind the space to this machine.

    Args:
        goes_on: whether the study has already searched the given space.

    Raises:
        UsageError: an input is invalid.
        LaunchFailed: the model does not start.
    """
    check_front(settings)
    target.check(settings.measurement)
    _check_energy(settings)
    for what in clocks.restore_stale().done:
        terminal.say(f"restored the {what}")
    environment = problem.environment_of(settings.target, machine.read(), target.spec)
    file = target.space(settings.target, goes_on=goes_on)
    first: Configuration | None = None
    if file is not None:  # raises before anything starts
        offered = problem.with_gpu(environment, file.space, is_tried=False)
        wanted = _wanted_space(file.space, settings.target, target, goes_on=goes_on)
        first = target.first(_bind(wanted, offered, settings, limits=ENFORCED).default)
    scenario = settings.target.scenario
    served = start_target(
        evaluator, first, asked=None if scenario is None else f"--scenario {scenario}"
    )
    payloads = target.payloads(settings.target, served, seed=settings.search.seed)
    evaluator.send(payloads)
    if served.limits != ENFORCED:
        terminal.say(f"limits: {served.limits}")
    for line in () if payloads.sent is None else payloads.sent.lines:
        terminal.say(line)
    _check_energy(settings, served)
    environment = problem.with_gpu(
        environment, None if file is None else file.space, device=served.device
    )
    if file is None:
        file = _derive_space(evaluator, environment, served, target, terminal)
    wanted, note = _wanted_space(file.space, settings.target, target, goes_on=goes_on), None
    if not goes_on:
        wanted, note = target.with_room(wanted, served)
    statement = _bind(
        wanted, environment, settings, limits=served.limits, text=file.text_of(wanted), note=note
    )
    return StudyInputs(
        settings=settings, target=target, problem=statement, payloads=payloads, served=served
    )


def _wanted_space(
    space: SearchSpace, settings: TargetSettings, target: Target, *, goes_on: bool
) -> SearchSpace:
    space = problem.with_variants(space, settings, target.spec)
    return space if goes_on else fixing.fix_knobs(space, settings.fixed)


def _bind(
    space: SearchSpace,
    environment: Environment,
    settings: StudySettings,
    *,
    limits: str,
    text: str = "",
    note: str | None = None,
) -> ProblemStatement:
    found = problem.make_problem(space, environment, limits=limits, text=text)
    found = problem.with_note_of_fixed(found, settings.target)
    if note is not None:
        found = dataclasses.replace(found, notes=(*found.notes, note))
    sampler_of(settings.search, found)
    return found


def _check_energy(settings: StudySettings, served: EngineInfo | None = None) -> None:
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
    evaluator: Evaluator, first: Configuration | None = None, *, asked: str | None = None
) -> EngineInfo:
    """Start the engine; errors repeat the model as given.

    Args:
        first: first configuration; None for the engine's defaults.
        asked: option given instead of `--model`.

    Raises:
        UsageError, LaunchFailed: the model does not start.
    """
    try:
        return evaluator.start(first)
    except LaunchFailed as error:
        always = getattr(evaluator.launcher, "always", {})
        for name, option in request_source.OPTIONS.items():
            _, is_named, said = error.text.partition(f": {name} ")
            if is_named and name in always:
                raise UsageError(f"{option} {said}") from error
        raise LaunchFailed(
            error.cause, f"{asked or f'--model {evaluator.model}'}: {error.text}"
        ) from error


def notes_of(inputs: StudyInputs, counted: Sequence[str] = ()) -> Iterator[str]:
    """Yield notes about space, payloads, limits and energy."""
    problem, payloads, served = inputs.problem, inputs.payloads, inputs.served
    yield from problem.notes
    if VARIANT in problem.space.names and problem.environment.variants:
        measured = (
            f"{name} {'not measured' if accuracy is None else format(accuracy, '.3g')}"
            for name, accuracy in problem.environment.variants
        )
        yield f"accuracy of the model's variants: {', '.join(measured)}"
    is_ours = served.engine == OUR_ENGINE
    batching = [knob.name for knob in problem.knobs if is_ours and knob.name in BATCHING_KNOBS]
    if served.unbatched_reason:
        useless = f"{' and '.join(batching)} change nothing" if batching else ""
        told = useless or "the knobs of batching are left out"
        yield f"the model is served whole, one request at a time ({served.unbatched_reason}): {told}"
    if payloads.is_synthetic:
        yield (
            f"the payloads are synthetic ({payloads.description}): real inputs may take a "
            "different time"
        )
    for name in payloads.guessed:
        yield (
            f"input {name} is sent whole numbers from 0 to {SMALL}, as the range of its "
            f"values is unknown: set it with --values {name}=LOW..HIGH"
        )
    if served.limits != ENFORCED:
        yield f"limits: {served.limits}"
    if counted:
        yield f"energy counts {' and '.join(counted)}, each as a whole"
    is_searched = any(knob.name == CACHE_KNOB for knob in problem.knobs)
    if is_ours and (is_searched or problem.default.get(CACHE_KNOB)):
        yield (
            f"the search includes a response cache ({CACHE_KNOB}), and the same requests "
            f"repeat ({payloads.description}), so the hit rate is not that of your "
            "traffic: leave the knob out, or give requests that repeat as yours do "
            "(--payload)"
        )


def _derive_space(
    evaluator: Evaluator,
    environment: Environment,
    served: EngineInfo,
    target: Target,
    terminal: Terminal,
) -> SpaceFile:
    said = f"no search space for {served.model}: deriving one with a probe of the model"
    terminal.say(said)
    text = probe.text(evaluator, environment, served)
    return SpaceFile(space=files.parse(text, file=f"{target.spec.name}.yaml"), text=text)
