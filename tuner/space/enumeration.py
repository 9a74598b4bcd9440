"""Enumeration of assignments that satisfy constraints, in lexicographic order of the grids.

Inactive knobs take only their default. Conditions name only unconditional knobs, which are assigned
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tuner.space.expression import Expression
from tuner.space.knobs import SearchedKnob
from tuner.values.configuration import Value

Conditions = Mapping[str, Expression]


def assignments(
    knobs: Sequence[SearchedKnob],
    conditions: Conditions,
    constraints: Iterable[Expression],
    symbols: Mapping[str, Value],
    *,
    fixed: Mapping[str, Value] | None = None,
) -> Iterator[dict[str, Value]]:
    """Yield every assignment that satisfies the constraints.

    `symbols` are the other names in constraints; knobs in `fixed` keep their value, even off the
    grid.
    """
    order = [knob for knob in knobs if knob.name not in conditions]
    order += [knob for knob in knobs if knob.name in conditions]
    options = [
        (fixed[knob.name],) if fixed and knob.name in fixed else knob.values() for knob in order
    ]
    depth = {knob.name: i for i, knob in enumerate(order)}
    due: list[list[Expression]] = [[] for _ in range(len(order) + 1)]
    for constraint in constraints:
        due[max((depth[name] + 1 for name in constraint.names if name in depth), default=0)].append(
            constraint
        )
    names = [knob.name for knob in knobs]
    values: dict[str, Value] = dict(symbols)

    def descend(i: int) -> Iterator[dict[str, Value]]:
        if i == len(order):
            yield {name: values[name] for name in names}
            return
        knob = order[i]
        condition = conditions.get(knob.name)
        is_active = condition is None or condition.holds(values)
        for value in options[i] if is_active else (knob.default,):
            values[knob.name] = value
            if all(constraint.holds(values) for constraint in due[i + 1]):
                yield from descend(i + 1)

    if all(constraint.holds(values) for constraint in due[0]):
        yield from descend(0)


def culprits(
    knobs: Sequence[SearchedKnob],
    conditions: Conditions,
    constraints: Sequence[Expression],
    symbols: Mapping[str, Value],
) -> tuple[Expression, ...]:
    """Return a minimal contradictory set of constraints, empty if all can be satisfied together.

    A constraint that cannot be satisfied is returned alone.
    """

    def is_possible(tried: Sequence[Expression]) -> bool:
        named = {name for constraint in tried for name in constraint.names}
        named |= {name for knob in named & conditions.keys() for name in conditions[knob].names}
        involved = [knob for knob in knobs if knob.name in named]
        return next(assignments(involved, conditions, tried, symbols), None) is not None

    for constraint in constraints:
        if not is_possible([constraint]):
            return (constraint,)
    if is_possible(constraints):
        return ()
    kept = list(constraints)
    for constraint in constraints:
        rest = [other for other in kept if other is not constraint]
        if not is_possible(rest):
            kept = rest
    return tuple(kept)
