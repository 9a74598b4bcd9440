"""A bench without processes: launches answered by the toy server of `studies`, at once."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from serving.model_spec import ModelSpec
from tests.fakes import studies
from tuner.evaluation.evaluation import Evaluation
from tuner.launching import apply
from tuner.launching.engine import EngineInfo
from tuner.load_generator import payloads
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.metrics import prices
from tuner.sampling.candidates import CandidateSet
from tuner.settings.study import StudySettings
from tuner.space.derived_features import features
from tuner.space.distributions import distributions
from tuner.space.environment import Environment, Machine
from tuner.space.files import parse
from tuner.space.knobs import knob_info
from tuner.study.preparation import StudyInputs
from tuner.study.problem import ProblemStatement
from tuner.study.target import LuthierTarget
from tuner.values.configuration import Configuration
from tuner.values.trial import OK, Outcome

SPACE = """
name: toy
knobs:
  replica.count: {type: int, choices: [1, 2, 3, 4], default: 1, unit: replicas}
  replica.cpu: {type: float, choices: [0.25, 0.5, 1.0, 2.0], scale: log, default: 1.0, unit: cores}
  replica.memory_mb: {type: int, choices: [128, 256, 512], scale: log, default: 512, unit: MiB}
  replica.threads: {type: int, choices: [1, 2, 4], scale: log, default: 1, unit: threads}
  batching.max_size: {type: int, choices: [1, 2, 4, 8, 16], scale: log, default: 8, unit: items}
"""
CONCURRENCY = 20
SENT = payloads.raw([b"x"], path="/x", method="POST", headers={}, description="one")


@dataclasses.dataclass
class ToyBench:
    """Answers every launch from the toy, with the noise of launches; keeps what it was asked for."""

    seed: int = 0
    failure: Outcome | None = None
    """What every launch gives, where it is set."""
    interrupt_at: int | None = None
    """Number of the launch, from 0, in which a signal comes."""

    def __post_init__(self) -> None:
        self.launched: list[Configuration] = []
        self.opened: list[tuple[Configuration, float]] = []
        self._rng = np.random.default_rng(self.seed)

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """One launch; never ended early."""
        del race
        if len(self.launched) == self.interrupt_at:
            raise KeyboardInterrupt
        self.launched.append(configuration)
        apply.to_settings(configuration)
        whole = Configuration({**studies.default(), **configuration})
        failure = self.failure
        if failure is None and (found := studies.failure(whole)) is not None:
            failure = Outcome(status="infeasible", cause=found[0], reason=found[1])
        measurement = None
        if failure is None:
            mean = studies.mean_ms(whole, CONCURRENCY)
            measurement = studies.measurement(mean, self._rng, concurrency=CONCURRENCY)
            held = prices.allocated_by(whole, cores=studies.CORES)
            cost = prices.cost_of(measurement, held, loaded_s=2.5, prices=prices.DEFAULT)
            measurement = dataclasses.replace(measurement, cost=cost)
        return Evaluation(
            configuration=configuration,
            outcome=failure or OK,
            measurement=measurement,
            records=None,
            startup_s=0.03,
            loaded_s=0.0,
            started_at=studies.STARTED_AT,
        )

    evaluate_on_new_server = evaluate

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """One launch in an open loop, which is not one of those that are `launched`."""
        assert seconds > 0
        self.opened.append((configuration, load.rate_per_s))
        launched, self.launched = self.launched, []
        found = ToyBench.evaluate(self, configuration)
        self.launched = launched
        if found.measurement is None:
            return found
        measurement = dataclasses.replace(
            found.measurement, rate_per_s=load.rate_per_s, little_error=None
        )
        return dataclasses.replace(found, measurement=measurement)

    why_not_interleaved = "a toy"

    def check_responses(self) -> None:
        """No server listens."""

    def close(self) -> None:
        """Nothing to end."""


def inputs(
    settings: StudySettings,
    served: EngineInfo,
    arena_: ProblemStatement | None = None,
    sent: Payloads = SENT,
) -> StudyInputs:
    """A prepared study of the toy."""
    spec = ModelSpec(name="toy", version="1", kind="python", path=None)
    return StudyInputs(
        settings=settings,
        target=LuthierTarget(spec=spec),
        problem=arena_ or arena(),
        payloads=sent,
        served=served,
    )


@functools.cache
def arena(text: str = SPACE) -> ProblemStatement:
    """The toy's space on a machine of four cores."""
    environment = Environment(concurrency=CONCURRENCY, machine=Machine(cores=4, memory_mb=16_384))
    space = parse(text, file="toy.yaml").narrow(environment)
    return ProblemStatement(
        text=text,
        space=space,
        environment=environment,
        default=space.default(),
        candidates=CandidateSet.of(
            space.candidates(environment), space.encode, lambda cell: features(cell, environment)
        ),
        distributions=distributions(space),
        knobs=tuple(map(knob_info, space.searched_knobs)),
        notes=(),
    )
