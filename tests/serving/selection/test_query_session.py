"""One query from the choice of models to its answer, and what users taught."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import InvalidSettings
from serving.selection import query_session
from serving.selection.application import Application
from serving.selection.model_output import Label, Number, Scores, Task
from serving.selection.policy import Query
from serving.selection.query_session import Selector
from serving.selection.stores.state_store import MemoryStore
from serving.selection.user_states import UserStates

MODELS = ("a", "b", "c")


def application(**changes: Any) -> Application:
    given: dict[str, Any] = {
        "name": "app",
        "models": MODELS,
        "policy": "exp4",
        "default_output": "none",
        "latency_slo_s": 0.05,
    }
    return Application(**given | changes)


def begun(app: Application) -> query_session.QuerySession:
    selector = Selector(app)
    return selector.begin(Query(id=7), selector.initial(), draw=0.0, now_s=10.0)


def test_a_query_ends_when_all_have_answered() -> None:
    """`record_output` says so; the result is the vote."""
    pending = begun(application())
    assert pending.models == MODELS
    assert pending.deadline_s == pytest.approx(10.05)
    assert not pending.record_output("a", Label("x"))
    assert not pending.record_output("b", Label("y"))
    assert pending.record_output("c", Label("x"))
    result, decision = pending.finish()
    assert (result.query_id, result.output, result.is_default) == (7, "x", False)
    assert result.explanation is None
    assert result.confidence == pytest.approx(2 / 3)
    assert set(result.used) == {"a", "c"}
    assert decision.output == "x"
    assert set(decision.answers) == set(MODELS)


def test_at_the_deadline_what_has_arrived_is_combined() -> None:
    """A straggler lowers the confidence, is named, and what it says later changes nothing."""
    pending = begun(application())
    pending.record_output("a", Label("x"))
    pending.record_output("b", Label("x"))
    result, decision = pending.finish()
    assert (result.output, result.is_default, result.missing) == ("x", False, ("c",))
    assert result.confidence == pytest.approx(2 / 3)
    assert pending.record_output("c", Label("y"))
    assert pending.finish() == (result, decision)
    assert set(decision.answers) == {"a", "b"}


DEFAULTS = [
    ("no model is linked", {"models": ()}, (), (), query_session.NO_MODELS),
    ("nothing arrived in time", {}, (), (), query_session.TOO_LATE),
    ("some failed, the rest was late", {}, (), ("a",), query_session.TOO_LATE),
    ("all failed", {}, (), MODELS, query_session.ALL_FAILED),
    (
        "too little confidence",
        {"confidence_threshold": 0.9},
        ("a", "b"),
        (),
        "The confidence 0.667 is below the application's threshold 0.9",
    ),
]


@pytest.mark.parametrize(
    ("changes", "arrive", "fail", "explanation"),
    [row[1:] for row in DEFAULTS],
    ids=[row[0] for row in DEFAULTS],
)
def test_the_default_is_given_marked_and_explained(
    changes: dict[str, Any], arrive: tuple[str, ...], fail: tuple[str, ...], explanation: str
) -> None:
    """Where there is no answer, or none with confidence."""
    pending = begun(application(**changes))
    for model in arrive:
        pending.record_output(model, Label("x"))
    for model in fail:
        pending.record_failure(model)
    result, decision = pending.finish()
    assert (result.output, result.is_default) == ("none", True)
    assert result.explanation == explanation
    assert decision.is_default
    assert decision.output == ("x" if arrive else None)


def test_strong_disagreement_is_suspicious() -> None:
    """Three answers of three models: a third of support is below one half."""
    for said, is_suspicious in (("xyz", True), ("xxy", False), ("xxx", False)):
        pending = begun(application(suspicious_threshold=0.5))
        for model, label in zip(MODELS, said, strict=True):
            pending.record_output(model, Label(label))
        assert pending.finish().result.is_suspicious is is_suspicious


def test_one_model_alone_is_never_suspicious() -> None:
    """There is nobody to disagree; its confidence is its own score."""
    pending = begun(application(policy="fixed"))
    pending.record_output("a", Scores(("x", "y"), (0.6, 0.4)))
    result = pending.finish().result
    assert (result.confidence, result.is_suspicious) == (0.6, False)


def test_numbers_are_answers_too() -> None:
    """The output is a number; the default is the application's text."""
    app = application(task=Task(kind="number", scale=10.0, tolerance=1.0))
    pending = begun(app)
    for model, value in zip(MODELS, (4.0, 5.0, 400.0), strict=True):
        pending.record_output(model, Number(value))
    result = pending.finish().result
    assert result.output == pytest.approx(4.5)
    assert result.confidence == pytest.approx(2 / 3)


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["record_output", "failed", "finish"]),
            st.sampled_from([*MODELS, "stranger"]),
            st.sampled_from("xyz"),
        ),
        max_size=20,
    ),
    policy=st.sampled_from(["fixed", "exp3", "exp4", "thompson", "per-user"]),
    threshold=st.floats(0.0, 1.0),
)
@settings(deadline=None, max_examples=60)
def test_any_order_of_events_ends_in_one_answer(
    events: list[tuple[str, str, str]], policy: str, threshold: float
) -> None:
    """Twice, never, by strangers or too late: one result, and only answers of those asked."""
    pending = begun(application(policy=policy, confidence_threshold=threshold))
    results = []
    for what, model, label in events:
        if what == "record_output":
            pending.record_output(model, Label(label))
        elif what == "failed":
            pending.record_failure(model)
        else:
            results.append(pending.finish())
    results.append(pending.finish())
    assert all(each == results[0] for each in results)
    result, decision = results[0]
    assert set(decision.answers) <= set(pending.models)
    assert 0.0 <= result.confidence <= 1.0
    assert result.is_default == (result.explanation is not None)
    assert result.is_default == (result.confidence < threshold or decision.output is None)
    assert set(result.used) <= set(decision.answers)
    assert set(result.missing) == set(pending.models) - set(decision.answers)


def test_an_application_survives_json() -> None:
    """Plain data and back, every field."""
    app = application(
        policy="exp3",
        options={"gamma": 0.2},
        costs={"a": 0.1},
        task=Task(kind="number", scale=3.0),
        contexts="user",
        most_users=7,
        confidence_threshold=0.25,
    )
    assert Application.from_json(json.loads(json.dumps(dataclasses.asdict(app)))) == app
    assert Application.from_json({"name": "x"}) == Application(name="x")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "a/b"}, "name = 'a/b'"),
    ({"input_type": "images"}, "input_type = 'images', expected one of integers"),
    ({"latency_slo_s": 0}, "latency_slo_s = 0, expected seconds above 0"),
    ({"models": ["a", "a"]}, "distinct names"),
    ({"models": "a"}, "expected a list of names"),
    ({"policy": "best"}, "policy 'best' is not known"),
    ({"options": {"x": 1}}, "no option 'x'"),
    ({"confidence_threshold": 1.5}, "confidence_threshold = 1.5, expected 0 to 1"),
    ({"contexts": "city"}, "contexts = 'city', expected shared or user"),
    ({"most_users": 0}, "most_users = 0, expected a whole number from 1 to 100000000"),
    ({"most_users": 1.5}, "most_users = 1.5, expected a whole number"),
    ({"most_users": True}, "most_users = True, expected a whole number"),
    ({"slo": 1}, "application = 'slo', expected one of name"),
    ({"task": {"kind": "rank"}}, "task.kind = 'rank'"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG)
def test_a_wrong_application_says_what_was_expected(changes: dict[str, Any], text: str) -> None:
    """Refused where it is made, with the key."""
    with pytest.raises(InvalidSettings, match=text):
        Application.from_json({"name": "app"} | changes)
    with pytest.raises(InvalidSettings, match="expected a name"):
        Application.from_json({})


def test_models_are_linked_and_unlinked() -> None:
    """In order; one that is there already, or not, is refused."""
    app = application(models=("a",)).with_models("b", "c").without_models("b")
    assert app.models == ("a", "c")
    with pytest.raises(InvalidSettings, match="distinct names"):
        app.with_models("a")
    with pytest.raises(InvalidSettings, match="expected one of a, c"):
        app.without_models("b")


def taught(contexts: UserStates, selector: Selector, user: str, truth: str, times: int) -> None:
    for number in range(times):
        pending = selector.begin(
            Query(id=number, user=user), contexts.state(user), draw=0.5, now_s=0.0
        )
        for model, label in zip(MODELS, "xyz", strict=True):
            pending.record_output(model, Label(label))
        contexts.observe(pending.finish().decision, truth)


def users(store: MemoryStore, among: list[str]) -> list[str]:
    """Those of whom there is a state."""
    return [user for user in among if store.load("app", user) is not None]


def test_users_have_contexts_of_their_own() -> None:
    """Each user's feedback moves its state and everybody's, not the other's."""
    selector, store = Selector(application(contexts="user")), MemoryStore()
    contexts = UserStates(selector, store)
    taught(contexts, selector, "u", "x", 40)
    taught(contexts, selector, "v", "y", 40)
    weights = {user: selector.policy.weights(contexts.state(user)) for user in ("u", "v", "")}
    assert weights["u"]["a"] > 0.9
    assert weights["v"]["b"] > 0.7
    assert weights[""]["c"] < 0.1
    assert users(store, ["", *"uvw"]) == ["", "u", "v"]
    newcomer = selector.policy.weights(contexts.state("w"))
    assert newcomer["c"] < 1 / 3 < newcomer["a"]


def test_states_of_made_up_users_are_bounded() -> None:
    """A user is whoever a request names; everybody's state, and those taught last, are kept."""
    selector, store = Selector(application(contexts="user", most_users=3)), MemoryStore()
    contexts = UserStates(selector, store)
    for number in range(50):
        taught(contexts, selector, f"u{number}", "x", 1)
    names = ["", *(f"u{number}" for number in range(50))]
    assert users(store, names) == ["", "u47", "u48", "u49"]
    changed = Selector(application(contexts="user", most_users=2))
    contexts.relink(changed)
    taught(contexts, changed, "v", "x", 1)
    taught(contexts, changed, "w", "x", 1)
    assert len(users(store, [*names, "v", "w"])) <= 4
    newcomer = changed.policy.weights(contexts.state("u0"))
    assert newcomer["a"] > 1 / 3, "what all have taught is not forgotten"


def test_a_shared_context_learns_from_all() -> None:
    """Without user contexts there is one state, whoever asks."""
    selector, store = Selector(application()), MemoryStore()
    contexts = UserStates(selector, store)
    taught(contexts, selector, "u", "x", 10)
    assert users(store, ["", "u"]) == [""]
    assert contexts.state("anyone") is contexts.state("")


def test_states_outlive_memory_and_process() -> None:
    """States that left the memory, and those of a new process, come from the store."""
    selector, store = Selector(application(contexts="user")), MemoryStore()
    contexts = UserStates(selector, store, capacity=2)
    for user in ("u", "v", "w"):
        taught(contexts, selector, user, "x", 5)
    learnt = contexts.state("u")
    assert selector.policy.weights(learnt)["a"] > 1 / 3
    assert UserStates(selector, store).state("u") == learnt


def test_relinking_keeps_what_was_learnt() -> None:
    """A model leaves and another comes: the state follows, from memory and from the store."""
    before = application()
    selector, store = Selector(before), MemoryStore()
    contexts = UserStates(selector, store)
    taught(contexts, selector, "", "x", 40)
    after = Selector(before.without_models("c").with_models("d"))
    contexts.relink(after)
    state = contexts.state("")
    assert state.models == ("a", "b", "d")
    weights = after.policy.weights(state)
    assert weights["a"] > weights["d"] > weights["b"]


def test_another_policy_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """What another policy stored says nothing; what is broken is logged and left."""
    store = MemoryStore()
    selector = Selector(application())
    taught(UserStates(selector, store), selector, "", "x", 5)
    other = Selector(application(policy="thompson"))
    assert UserStates(other, store).state("") == other.initial()
    for text in ("", "[]", "{}", '{"policy":"exp4","state":{"weights":3}}'):
        with pytest.raises(ValueError):
            selector.parse_state(text)
        store.save("app", {"": text})
        with caplog.at_level(logging.ERROR):
            assert UserStates(selector, store).state("") == selector.initial()
        assert "state not readable" in caplog.text


def test_a_state_of_wrong_numbers_is_refused() -> None:
    """Infinities and lengths that do not fit are found when a state is restored."""
    for name in ("exp3", "exp4", "thompson", "per-user"):
        selector = Selector(application(policy=name))
        text = selector.dump_state(selector.initial())
        with pytest.raises(ValueError):
            selector.parse_state(text.replace("0.0", "NaN", 1))
        with pytest.raises(ValueError):
            selector.parse_state(text.replace('"a",', "", 1))
