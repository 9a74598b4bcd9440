"""What a study works on, checked before anything is written: the model, its space on this machine,
its payloads.

In: settings, and what the running engine says of the model. Out: `Arena`, the space bound to
machine and concurrency in the forms that samplers and the store need; and payloads. Errors name the
option or the file. Reads files, starts nothing.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
from numpy.typing import NDArray

from serving import zoo
from serving.accelerator import clocks, mps
from serving.errors import ServingError
from serving.values import ModelCard
from tuner import sending
from tuner.errors import WrongUse
from tuner.launching.engine import Served
from tuner.launching.engine_process import ServingLauncher
from tuner.launching.machine import MachineFacts
from tuner.open_load import open_load_of
from tuner.sampling.candidates import Candidates
from tuner.sampling.knowledge import Earlier
from tuner.settings import TargetSettings
from tuner.space import distributions, files, fixing, footprint, physics, vocabulary
from tuner.space.environment import ACCURACY, VARIANT, Environment, Machine
from tuner.space.knobs import ChoiceKnob, FloatKnob, IntKnob, Knob
from tuner.space.narrowing import CLOCK, SHARE
from tuner.space.space import SearchSpace
from tuner.space.vocabulary import Vocabulary
from tuner.store.study_store import Distributions
from tuner.traffic.payloads import Payloads
from tuner.values import Configuration, KnobInfo

Array = NDArray[np.float64]
EQUAL = 1.0001
"""Predictions whose ratio is below it are the same."""
LIMITED_KNOBS = vocabulary.LIMITS_OF_ANY
"""Knobs that do nothing where limits cannot be enforced."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arena:
    """A search space on this machine under this load, as the search uses it."""

    text: str
    """The space's file, for any machine."""
    space: SearchSpace
    """The space on this machine."""
    environment: Environment
    default: Configuration
    candidates: Candidates
    distributions: Distributions
    knobs: tuple[KnobInfo, ...]
    notes: tuple[str, ...]
    guess: Array | None = None
    """(m,) of the candidates: the predicted objective, minimised; None where nothing is predicted."""
    latency: Array | None = None
    """(m,) of the candidates: the predicted mean round trip in ms, whatever the objective is."""
    within: NDArray[np.bool_] | None = None
    """(m,) whether each is predicted to keep to the limits; None where there are none."""
    earlier: Earlier | None = None
    """Launches of earlier studies of the model, under other loads."""
    winners: tuple[Configuration, ...] | None = None
    """Candidates that won them."""

    @property
    def guessed_best(self) -> Configuration | None:
        """The cell with the best prediction; None where nothing is predicted.

        A prediction does not tell of every knob: of equal ones it is the one nearest to the default.
        """
        if self.guess is None:
            return None
        guess = self.guess
        if self.within is not None and self.within.any():
            guess = np.where(self.within, guess, np.inf)
        best = np.flatnonzero(guess <= EQUAL * np.min(guess))
        cells = (self.candidates.cells[int(place)] for place in best)
        return min(cells, key=lambda cell: footprint.differences(cell, self.default))

    def is_default(self, configuration: Configuration) -> bool:
        """Whether a configuration behaves like the default."""
        if configuration == self.default:
            return True
        same = self.space.canonical(configuration, self.environment)
        return same == self.space.canonical(self.default, self.environment)


def card_of(model: str, *, is_trusted: bool = False) -> ModelCard:
    """The card of a bundled model or of a file; `is_trusted` as of `zoo.find`.

    Raises:
        WrongUse: there is none of that name, or the file cannot be a model.
    """
    try:
        return zoo.find(model, is_trusted=is_trusted)
    except ServingError as error:
        raise WrongUse(f"--model: {error}") from error


def absolute_model(model: str, card: ModelCard) -> str:
    """The model as another working folder would name it."""
    if model in zoo.names() or card.path is None or not pathlib.Path(model).exists():
        return model
    return str(pathlib.Path(model).absolute())


def space_text_of(target: TargetSettings, card: ModelCard) -> str | None:
    """The file of the space that was given, else the bundled one's; None where one has to be
    derived.

    Raises:
        InvalidSpace: the file is wrong.
    """
    _check_variants(target, card)
    if target.space is not None:
        files.load(target.space)
        return files.read_text(target.space)
    bundled = files.bundled(card.name) if target.model in zoo.names() else None
    return None if bundled is None else files.dump(bundled)


def with_variants(text: str, target: TargetSettings, card: ModelCard, *, source: str) -> str:
    """The space's file with the model's forms as a knob and the accuracy that is asked for as a constraint.

    As it is where no accuracy is asked for.

    Raises:
        InvalidSpace: the file is wrong.
    """
    if target.min_accuracy is None:
        return text
    space = files.parse(text, file=source)
    knobs = space.knobs
    if VARIANT not in space.names:
        assert card.default_variant is not None, "checked by `space_text_of`"
        choices = tuple(card.variants)
        knobs = (*knobs, ChoiceKnob(name=VARIANT, default=card.default_variant, choices=choices))
    constraint = f"{ACCURACY} >= {target.min_accuracy:g}"
    if knobs == space.knobs and constraint in space.constraints:  # a study that goes on
        return text
    constraints = (*space.constraints, constraint)
    return files.dump(dataclasses.replace(space, knobs=knobs, constraints=constraints))


def with_fixed(
    text: str,
    target: TargetSettings,
    *,
    source: str,
    known: Vocabulary = vocabulary.SERVING,
) -> str:
    """The space's file with the knobs that are fixed at one value each; as it is where none is.

    Raises:
        WrongUse: there is no such knob, or the value is out of its range.
        InvalidSpace: nothing is feasible with these values.
    """
    if not target.fixed:
        return text
    space = files.parse(text, file=source, vocabulary=known)
    return files.dump(fixing.fixed(space, target.fixed))


def with_note_of_fixed(arena: Arena, target: TargetSettings) -> Arena:
    """The arena with a note of the knobs that are fixed.

    Raises:
        WrongUse: one of them is none on this machine.
    """
    if not target.fixed:
        return arena
    for one in target.fixed:
        name = one.partition("=")[0]
        if name not in arena.space.names:
            why = next((note for note in arena.notes if note.startswith(name)), "left out here")
            raise WrongUse(f"--fix {one}: {why}")
    note = f"fixed, and not searched: {', '.join(target.fixed)}"
    return dataclasses.replace(arena, notes=(*arena.notes, note))


def _check_variants(target: TargetSettings, card: ModelCard) -> None:
    if target.min_accuracy is not None and not card.variants:
        raise WrongUse(
            f"--min-accuracy {target.min_accuracy:g}: {card.name} has no variants to choose from; "
            "give a model whose model.yaml lists some, as resnet's does (docs/models.md)"
        )


def environment_of(target: TargetSettings, machine: MachineFacts, card: ModelCard) -> Environment:
    """Machine, load and the model's forms, in the space's terms; what its GPU offers: see `with_gpu`."""
    forms = tuple((name, variant.accuracy) for name, variant in card.variants.items())
    load = open_load_of(target)
    return Environment(
        concurrency=target.in_flight,
        client_batch=target.client_batch,
        rate_per_s=None if load is None else load.rate_per_s,
        machine=Machine(cores=machine.cores, memory_mb=machine.memory_mb),
        variants=None if target.is_of_other_engine else forms,
    )


def with_gpu(
    environment: Environment,
    text: str | None,
    *,
    device: str | None = None,
    is_tried: bool = True,
) -> Environment:
    """The environment with what the GPU offers to a space.

    Args:
        environment: machine and load.
        text: the space's file; None: one that will be derived, to which all is offered.
        device: where the model runs, `cpu` or `cuda`; None: not known. On the CPU a GPU has nothing to offer.
        is_tried: whether the clock is locked for a moment, to know that it can be.
    """
    if device == "cpu":
        why = "the model runs on the CPU"
        machine = dataclasses.replace(
            environment.machine, gpu_clocks_mhz=(), no_clocks=why, no_sharing=why
        )
        return dataclasses.replace(environment, machine=machine)
    machine = environment.machine
    if text is None or CLOCK in text:
        found = clocks.lockable_clocks_mhz() if is_tried else clocks.supported_clocks_mhz()
        if isinstance(found, str):
            machine = dataclasses.replace(machine, gpu_clocks_mhz=(), no_clocks=found)
        else:
            machine = dataclasses.replace(machine, gpu_clocks_mhz=found)
    if text is None or SHARE in text:
        machine = dataclasses.replace(machine, no_sharing=mps.lacking(os.environ) or "")
    return dataclasses.replace(environment, machine=machine)


def arena_of(
    text: str,
    environment: Environment,
    *,
    source: str,
    limits: str,
    known: Vocabulary = vocabulary.SERVING,
) -> Arena:
    """Bind a space to this machine and load.

    Args:
        text: the space's file.
        source: what to call it in an error.
        environment: machine and load.
        limits: the engine's word on limits; knobs that need them keep one value where they are not
        enforced.
        known: what the engine knows.

    Raises:
        InvalidSpace: the file is wrong, or nothing is feasible here.
    """
    narrowed = space_of(text, environment, source=source, limits=limits, known=known)
    default = narrowed.default()
    representative = narrowed.canonical(default, environment)
    cells = narrowed.cells(environment)
    # The default stands for its own class: what runs first is what the user has today, by its own
    # values.
    candidates = Candidates.of(
        [default if cell == representative else cell for cell in cells],
        narrowed.encode,
        lambda cell: physics.features(cell, environment),
    )
    return Arena(
        text=text,
        space=narrowed,
        environment=environment,
        default=default,
        candidates=candidates,
        distributions=distributions.distributions(narrowed),
        knobs=tuple(knob.info() for knob in narrowed.searched),
        notes=narrowed.notes,
    )


def space_of(
    text: str,
    environment: Environment,
    *,
    source: str,
    limits: str,
    known: Vocabulary = vocabulary.SERVING,
) -> SearchSpace:
    """The space on this machine under this load; arguments and errors as for `arena_of`."""
    narrowed = files.parse(text, file=source, vocabulary=known).narrowed(environment)
    if limits != "enforced":
        narrowed = _without_limits(narrowed, limits)
    return narrowed


def payloads_of(target: TargetSettings, card: ModelCard, served: Served, *, seed: int) -> Payloads:
    """What is sent; see `sending`.

    Raises:
        WrongUse: the file cannot be read or does not fit the model, a size is not known, or the model takes no client
        batch.
    """
    found = sending.sending(target, card, served.told_signature())
    return found.payloads(model=served.model, client_batch=target.client_batch, seed=seed)


def launcher_of(target: TargetSettings) -> ServingLauncher:
    """What starts the serving core with the model.

    Raises:
        WrongUse: sizes or values were told in another form, or their file cannot be read.
    """
    sending.check(target)
    return ServingLauncher(
        target.model,
        target.home,
        is_trusted=target.trust,
        always=sending.server_settings(target),
    )


def _without_limits(space: SearchSpace, limits: str) -> SearchSpace:
    notes = [
        f"{knob.name} stays at {knob.default} {knob.unit}: limits are {limits}"
        for knob in space.searched
        if knob.name in LIMITED_KNOBS
    ]
    knobs = tuple(_at_default(knob) if knob.name in LIMITED_KNOBS else knob for knob in space.knobs)
    return dataclasses.replace(space, knobs=knobs, notes=(*space.notes, *notes))


def _at_default(knob: Knob) -> Knob:
    """The knob with one value left, its default."""
    if not isinstance(knob, IntKnob | FloatKnob):
        return knob
    return knob.only(lambda value: value == knob.default) or knob
