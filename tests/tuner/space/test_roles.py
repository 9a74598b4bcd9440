"""Roles: other engines' configurations in Luthier's names and units."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import file as engine_file
from tuner.space import files, knob_schema, roles
from tuner.space.derived_features import features
from tuner.space.environment import Environment, Machine
from tuner.space.fixing import fix_knobs
from tuner.space.knobs import ChoiceKnob, FloatKnob, IntKnob, Knob
from tuner.values.configuration import Value

ENGINES = pathlib.Path(engine_file.__file__).parent / "files"
ENVIRONMENT = Environment(concurrency=20, machine=Machine(cores=2, memory_mb=8192))


def bundled(name: str) -> tuple[Knob, ...]:
    path = ENGINES / name / "engine.yaml"
    engine = engine_file.parse(path.read_text(), path)
    known = knob_schema.of_command(engine.knobs, beside=engine_file.OWN_KEYS)
    return files.parse(engine.text, str(path), known).knobs


def whole(name: str, unit: str = "", role: roles.Role | None = None) -> IntKnob:
    return IntKnob(name=name, low=0, high=10**6, points=2, default=0, unit=unit, role=role)


def test_luthiers_own_configurations_are_translated_to_themselves() -> None:
    """Nothing is computed on the way, so that their features stay what they are to the last bit."""
    own = files.load_bundled("resnet")
    assert own is not None
    canonical = roles.translator(own.knobs)
    for configuration in own.candidates(ENVIRONMENT):
        known = {name: value for name, value in configuration.items() if name in roles.BY_NAME}
        found = canonical(configuration)
        assert found == known
        assert list(map(type, found.values())) == [type(known[name]) for name in found]
        assert (features(found, ENVIRONMENT) == features(configuration, ENVIRONMENT)).all()


@given(
    st.permutations([*roles.CANONICAL]),
    st.sampled_from([*roles.MICROSECONDS.items(), ("", 1)]),
    st.integers(1, 10**6),
)
def test_any_name_is_translated_by_its_role(
    order: list[roles.Role], unit: tuple[str, int], value: int
) -> None:
    """Neither names nor order matter; a wait is converted to microseconds."""
    knobs = [whole(f"x{place}", unit[0], role) for place, role in enumerate(order)]
    found = roles.translator([*knobs, whole("other")])(
        {"other": 1, **{knob.name: value + place for place, knob in enumerate(knobs)}}
    )
    assert found == {
        roles.CANONICAL[role]: (value + place) * (unit[1] if role == "wait" else 1)
        for place, role in enumerate(order)
    }


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        pytest.param([whole("replica.count", role="batch")], {"batching.max_size": 1}, id="declared"),
        pytest.param([whole(roles.WAIT_MS)], {"batching.timeout_us": 1000}, id="without a unit"),
        pytest.param([whole(roles.WAIT_MS), whole("batching.timeout_us")],
                     {"batching.timeout_us": 2}, id="Luthier's own name first"),
        pytest.param([ChoiceKnob(name="replica.threads", choices=("auto", "2"), default="auto")],
                     {}, id="no number"),
    ],
)  # fmt: skip
def test_roles_by_name_yield_to_what_is_known_better(
    knobs: list[Knob], expected: dict[str, Value]
) -> None:
    given = {knob.name: place + 1 for place, knob in enumerate(knobs)}
    assert roles.translator(knobs)(given) == expected


def test_every_knob_of_a_bundled_engine_but_memory_has_a_role() -> None:
    for name in ("mosec", "triton"):
        without = {knob.name for knob in bundled(name) if roles.role_of(knob) is None}
        assert without <= {"engine.memory_mb"}


@pytest.mark.parametrize("is_recorded", [False, True])
@given(
    count=st.integers(1, 3),
    threads=st.integers(1, 2),
    size=st.sampled_from([1, 2, 4, 8, 16, 32]),
    wait_ms=st.integers(1, 10),
    quota=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_configuration_of_mosec_has_the_features_of_luthiers(
    is_recorded: bool, count: int, threads: int, size: int, wait_ms: int, quota: float
) -> None:
    """A quota of the whole engine is that of its only replica; one of all cores limits nothing."""
    recorded = (
        *(whole(name) for name in ("replica.count", "replica.threads", "batching.max_size")),
        whole("batching.wait_ms", "ms"),
        FloatKnob(name="engine.cpu", low=0.5, high=2.0, default=2.0),
    )
    canonical = roles.translator(recorded if is_recorded else bundled("mosec"))
    same = {"replica.threads": threads, "batching.max_size": size}
    for replicas, cores in ((count, 2.0), (1, quota)):
        own = {**same, "replica.count": replicas, "batching.timeout_us": 1000 * wait_ms}
        other = {**same, "replica.count": replicas, "batching.wait_ms": wait_ms}
        expected = features({**own, "replica.cpu": cores}, ENVIRONMENT)
        assert (features(canonical({**other, "engine.cpu": cores}), ENVIRONMENT) == expected).all()


def test_a_quota_of_the_whole_engine_limits_all_replicas_together() -> None:
    one, three = (
        features({"replica.count": count, "engine.cpu": 0.5}, ENVIRONMENT) for count in (1, 3)
    )
    assert one[0] == three[0] < features({"replica.count": 1}, ENVIRONMENT)[0]


def test_zero_of_another_engine_has_features() -> None:
    nothing = dict.fromkeys(roles.CANONICAL.values(), 0)
    assert ((features(nothing, ENVIRONMENT) >= 0) & (features(nothing, ENVIRONMENT) <= 1)).all()


def test_a_fixed_knob_keeps_its_role() -> None:
    text = """
knobs:
  w: {type: int, range: [1, 2], default: 1, role: replicas}
  v: {type: int, range: [1, 2], default: 1}
"""
    space = files.parse(text, "x.yaml", knob_schema.OF_URL)
    fixed = fix_knobs(space, ["w=2"])
    assert roles.translator(fixed.knobs)({"w": 2, "v": 1}) == {"replica.count": 2}
