"""Search space: feasible configurations, one candidate per behaviour, and their vectors.

A space is written for any machine; `narrow` binds it to one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from serving.error_text import nearest
from tuner.errors import InvalidSpace
from tuner.space import enumeration, equivalence, narrowing
from tuner.space.environment import ACCURACY, ENVIRONMENT_SYMBOLS, VARIANT, Environment
from tuner.space.expression import NUMBER, ByChoice, Expression, ExpressionError, Kind
from tuner.space.knobs import ChoiceKnob, DeviceKnob, Knob, SearchedKnob
from tuner.values.configuration import Configuration, Value

MAX_GRID = 5_000_000
"""Maximum grid size before constraints; a larger grid takes minutes to enumerate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Knobs, constraints and equivalence rules."""

    name: str
    knobs: tuple[Knob, ...]
    constraints: tuple[str, ...] = ()
    """Expressions that must hold, over knobs, `ENVIRONMENT_SYMBOLS` and `ACCURACY`."""
    equivalence: tuple[str, ...] = equivalence.RULES
    """Rules of `tuner.space.equivalence` for this model."""
    notes: tuple[str, ...] = ()
    """Remarks for readers of results, such as values left out here."""
    source: str = ""
    environment: Environment | None = None

    def __post_init__(self) -> None:
        """Raise InvalidSpace for an invalid expression, too fine a grid, or no feasible values."""
        if not self.knobs:
            raise self._error("knobs", "there is none, expected at least one")
        size = math.prod(len(knob.values()) for knob in self.searched_knobs)
        if size > MAX_GRID:
            raise self._error(
                "knobs",
                f"{size:,} configurations, more than {MAX_GRID:,}: use fewer points or choices",
            )
        self._check_conditions()
        self._check_feasible()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the searched knobs, in file order."""
        return tuple(knob.name for knob in self.searched_knobs)

    def default(self) -> Configuration:
        """Return the default configuration."""
        return Configuration({knob.name: knob.default for knob in self.searched_knobs})

    def is_feasible(
        self, configuration: Mapping[str, Value], environment: Environment | None = None
    ) -> bool:
        """Whether values are in range, constraints hold, and inactive knobs have their defaults.

        Raises:
            ValueError: a knob is missing or unknown, or a constraint needs an environment.
        """
        values = self._apply_conditions(configuration)
        try:
            for knob in self.searched_knobs:
                knob.check(values[knob.name])
        except ValueError:
            return False
        values |= self._symbols(environment)
        with self._division_errors():
            return all(constraint.holds(values) for constraint in self._constraints.values())

    def canonical(
        self, configuration: Mapping[str, Value], environment: Environment
    ) -> Configuration:
        """Return the representative of the configurations that behave like this one.

        If none of them is on the grid, only inactive knobs change.
        """
        values = self._apply_conditions(configuration)
        wanted = self._key(values, environment)
        touched = {name for rule in self.equivalence for name in equivalence.TOUCHED[rule]}
        fixed = {name: value for name, value in values.items() if name not in touched}
        for candidate in self._assignments(environment, fixed):
            if self._key(candidate, environment) == wanted:
                return Configuration(candidate)
        return Configuration(values)

    def candidates(
        self, environment: Environment, limit: int = 200_000
    ) -> tuple[Configuration, ...]:
        """Narrow the space, and return every feasible configuration that represents itself.

        Raises InvalidSpace if there are more than `limit`.
        """
        space = self.narrow(environment)
        found: dict[tuple[Value, ...], dict[str, Value]] = {}
        for values in space._assignments(environment):  # noqa: SLF001 - the same class
            found.setdefault(space._key(values, environment), values)  # noqa: SLF001
            if len(found) > limit:
                raise self._error(
                    "knobs", f"more than {limit:,} configurations; use fewer points or choices"
                )
        return tuple(Configuration(values) for values in found.values())

    def narrow(self, environment: Environment) -> SearchSpace:
        """Return this space for one machine, with notes on what the machine lacks.

        Raises InvalidSpace if a knob has no possible value or no configuration is feasible.
        """
        if self.environment == environment:
            return self
        self._check_variants(environment)
        kept: list[Knob] = []
        notes = list(self.notes)
        for knob in self.knobs:
            try:
                found = narrowing.narrow_knob(knob, environment.machine)
            except ValueError as error:
                raise self._error(f"knobs.{knob.name}", str(error)) from None
            notes += found.notes
            if found.knob is not None:
                kept.append(found.knob)
        lost = {knob.name for knob in self.knobs} - {knob.name for knob in kept}
        constraints = []
        for text in self.constraints:
            if self._constraints[text].names & lost:
                notes.append(f"constraint left out with its knob: {text}")
            else:
                constraints.append(text)
        space = dataclasses.replace(
            self,
            knobs=tuple(kept),
            constraints=tuple(constraints),
            notes=tuple(notes),
            environment=environment,
        )
        ruled_out = narrowing.ruled_out(space.searched_knobs, space._constraints, environment)  # noqa: SLF001
        space = dataclasses.replace(space, notes=(*space.notes, *ruled_out))
        if not space.is_feasible(space.default()):
            note = "the default configuration violates a constraint here; it is never proposed"
            space = dataclasses.replace(space, notes=(*space.notes, note))
        return space

    def encode(self, configuration: Mapping[str, Value]) -> NDArray[np.float64]:
        """Return a configuration's vector (d,) in the unit cube, in the order of `names`."""
        values = self._apply_conditions(configuration)
        return np.array(
            [knob.to_unit(values[knob.name]) for knob in self.searched_knobs], dtype=np.float64
        )

    @functools.cached_property
    def searched_knobs(self) -> tuple[SearchedKnob, ...]:
        """Knobs that have values; for `DeviceKnob`, only after narrowing."""
        return tuple(knob for knob in self.knobs if not isinstance(knob, DeviceKnob))

    @functools.cached_property
    def _constraints(self) -> dict[str, Expression]:
        kinds = symbol_kinds(self.knobs, self.environment)
        return {
            text: self._compile(f"constraints[{i}]", text, kinds)
            for i, text in enumerate(self.constraints)
        }

    @functools.cached_property
    def _conditions(self) -> dict[str, Expression]:
        kinds = symbol_kinds(self.knobs)
        return {
            knob.name: self._compile(f"knobs.{knob.name}.condition", knob.condition, kinds)
            for knob in self.searched_knobs
            if knob.condition
        }

    def _compile(self, key: str, text: str, kinds: Mapping[str, Kind]) -> Expression:
        try:
            return Expression(text, kinds)
        except ExpressionError as error:
            raise self._error(key, f"{text!r} {error}") from None

    def _check_conditions(self) -> None:
        known = {knob.name for knob in self.searched_knobs}
        fixed = known - self._conditions.keys() - narrowing.OF_DEVICE
        for name, condition in self._conditions.items():
            for other in sorted(condition.names - fixed):
                raise self._error(
                    f"knobs.{name}.condition",
                    f"{other!r} cannot decide a condition: only knobs without a condition "
                    f"that every machine has can ({', '.join(sorted(fixed))})",
                )

    def _check_variants(self, environment: Environment) -> None:
        for knob in self.searched_knobs:
            if knob.name != VARIANT:
                continue
            asked = any(ACCURACY in constraint.names for constraint in self._constraints.values())
            if environment.variants is None:
                if asked:
                    raise self._error("constraints", f"{ACCURACY} is unknown for another engine")
                continue
            known = dict(environment.variants)
            for choice in map(str, knob.values()):
                if choice not in known:
                    listed = ", ".join(known)
                    has = f"its variants are {listed}" if known else "it has no variants"
                    raise self._error(
                        f"knobs.{VARIANT}.choices",
                        f"the model has no {choice!r}{nearest(choice, known)}; {has}",
                    )
                if asked and known[choice] is None:
                    raise self._error(
                        "constraints",
                        f"the variant {choice!r} has no measured accuracy: add it to "
                        "`quality` in the model's spec",
                    )

    def _check_feasible(self) -> None:
        decidable = [c for c in self._constraints.values() if self._is_decidable(c)]
        symbols = self.environment.symbols() if self.environment else {}
        with self._division_errors():
            blamed = enumeration.culprits(self.searched_knobs, self._conditions, decidable, symbols)
        if blamed:
            key = f"constraints[{self.constraints.index(blamed[0].text)}]"
            where = "".join(f", {name} = {value}" for name, value in symbols.items())
            texts = " and ".join(repr(constraint.text) for constraint in blamed)
            rules = "rules out" if len(blamed) == 1 else "together rule out"
            named = frozenset().union(*(constraint.names for constraint in blamed))
            knobs = ", ".join(name for name in self.names if name in named)
            way = f": relax {'it' if len(blamed) == 1 else 'one'}"
            way += f", or change the values of {knobs}" if knobs else ""
            raise self._error(key, f"{texts} {rules} every configuration{where}{way}")

    def _is_decidable(self, constraint: Expression) -> bool:
        unbound = () if self.environment is not None else (*ENVIRONMENT_SYMBOLS, ACCURACY)
        return not constraint.names & {*self._undefined, *unbound}

    def _symbols(self, environment: Environment | None) -> dict[str, int]:
        known = environment or self.environment
        for text, constraint in self._constraints.items():
            if ACCURACY in constraint.names:  # narrowed, it would name the knob
                raise ValueError(f"{text!r} depends on the model: narrow the space first")
            if known is None and constraint.names & set(ENVIRONMENT_SYMBOLS):
                raise ValueError(
                    f"{text!r} depends on the machine: narrow the space first, or give "
                    "the environment"
                )
        return {} if known is None else known.symbols()

    def _assignments(
        self, environment: Environment, fixed: Mapping[str, Value] | None = None
    ) -> Iterator[dict[str, Value]]:
        constraints = [c for c in self._constraints.values() if not c.names & self._undefined]
        symbols = self._symbols(environment)
        with self._division_errors():
            yield from enumeration.assignments(
                self.searched_knobs, self._conditions, constraints, symbols, fixed=fixed
            )

    @functools.cached_property
    def _undefined(self) -> frozenset[str]:
        return frozenset(knob.name for knob in self.knobs) - set(self.names)

    def _key(self, values: Mapping[str, Value], environment: Environment) -> tuple[Value, ...]:
        felt = equivalence.behaviour(values, environment, self.equivalence)
        return tuple(felt[name] for name in self.names)

    def _apply_conditions(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        values = dict(configuration)
        names = set(self.names)
        if values.keys() != names:
            missing, extra = sorted(names - values.keys()), sorted(values.keys() - names)
            raise ValueError(
                f"not a configuration of {self.name}: missing {missing}, unknown {extra}"
            )
        for knob in self.searched_knobs:
            condition = self._conditions.get(knob.name)
            if condition is not None and not condition.holds(values):
                values[knob.name] = knob.default
        return values

    @contextlib.contextmanager
    def _division_errors(self) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError:
            raise self._error(
                "constraints", "one of them divides by 0 for some configuration"
            ) from None

    def _error(self, key: str, text: str) -> InvalidSpace:
        return InvalidSpace(self.source or self.name, key, text)


def symbol_kinds(
    knobs: tuple[Knob, ...], environment: Environment | None = None
) -> dict[str, Kind]:
    """Return the names for expressions with their kinds; `ACCURACY` needs an environment."""
    kinds: dict[str, Kind] = {
        knob.name: knob.choices if isinstance(knob, ChoiceKnob) else NUMBER for knob in knobs
    }
    if VARIANT in kinds:
        measured = environment.variants if environment is not None else ()
        numbers = tuple((name, value) for name, value in measured or () if value is not None)
        kinds[ACCURACY] = NUMBER if environment is None else ByChoice(VARIANT, numbers)
    return kinds | dict.fromkeys(ENVIRONMENT_SYMBOLS, NUMBER)
