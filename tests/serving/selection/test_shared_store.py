"""One contract for every store that gateways share, and the laws of the exchange over it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.errors import InvalidSettings, NotReady
from serving.selection import decision_json, feedback_exchange
from serving.selection.application import Application
from serving.selection.decision_json import Feedback, LogText
from serving.selection.model_output import Label, Number, Scores
from serving.selection.policy import Choice, Decision, Query
from serving.selection.query_ids import BLOCK, QueryIds
from serving.selection.query_session import Selector
from serving.selection.shared_decisions import SharedDecisions
from serving.selection.shared_states import SharedUserStates
from serving.selection.stores.redis_shared import RedisShared
from serving.selection.stores.shared_store import KeptDecision, PlacedState, SharedStore, Told
from serving.selection.stores.sqlite_shared import SqliteShared
from serving.selection.stores.sqlite_store import SqliteStore
from serving.selection.user_states import UserStates
from tests.fakes.redis_server import running_redis

PATIENCE_S = 5.0


@pytest.fixture(name="redis")
def _redis() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as name, running_redis(pathlib.Path(name)) as running:
        yield running


@pytest.fixture(name="opened", params=["sqlite", "redis"])
def _opened(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[Callable[[], SharedStore]]:
    """Opens the same store again and again."""
    url = request.getfixturevalue("redis")[1] if request.param == "redis" else None
    with contextlib.ExitStack() as closed:

        def open_() -> SharedStore:
            path = tmp_path / "states.db"
            made = SqliteShared(path) if url is None else RedisShared(url, patience_s=PATIENCE_S)
            closed.callback(made.close)
            return made

        yield open_


def decision(key: int, user: str = "", said: str = "a") -> Decision:
    return Decision(
        query=Query(id=key, user=user, input_hash="h"),
        choice=Choice(models=(said,), probabilities={"a": 0.5, "b": 0.5}),
        answers={said: Label(said)},
        output=said,
    )


def kept(key: int, user: str = "u", hashed: str = "h", text: str = "") -> KeptDecision:
    return KeptDecision(key, "app", user, hashed, text or f"text {key}")


# The contract


def test_ids_are_given_once(opened: Callable[[], SharedStore]) -> None:
    """Whatever the order of who asks, and never below what a clock says."""
    one, other = opened(), opened()
    big = 2**52
    firsts = [one.reserve_ids(10, at_least=big), other.reserve_ids(5, at_least=7)]
    firsts.append(one.reserve_ids(10, at_least=big + 100))
    assert firsts == [big, big + 10, big + 100]


def test_the_log_takes_each_key_once(opened: Callable[[], SharedStore]) -> None:
    """In the order of writing, and repeated writes change nothing; places are numbered from 1."""
    one, other = opened(), opened()
    assert one.read(0, 10) == (0, 0, 0, [])
    told = [Told(2**51 + n, "app", f"ü {n}") for n in range(4)]
    assert one.append(told[:2]) == [1, 2]
    assert other.append([told[1], told[3], told[3]]) == [2, 3, 3]
    assert one.append([]) == []
    assert one.append([told[0], told[2]]) == [1, 4]
    page = other.read(0, 10)
    assert [place.number for place in page.places] == [1, 2, 3, 4]
    assert [place.told for place in page.places] == [told[0], told[1], told[3], told[2]]
    assert page[:3] == (0, 0, 4)
    assert [place.number for place in one.read(1, 2).places] == [2, 3]


def test_a_state_is_replaced_by_one_that_learnt_more(opened: Callable[[], SharedStore]) -> None:
    """Older ones are ignored; a deletion takes those before its place.

    One that learnt from places that the log lost is ignored, too.
    """
    one, other = opened(), opened()
    one.append([Told(key, "app", "") for key in range(3)])

    def save(store: SharedStore, states: Any, base: int = 0, **more: Any) -> None:
        store.save(states, base=base, **{"deleted": {}, "most_users": {}, **more})

    shared, anna, else_ = ("app", ""), ("app", "anna"), ("other", "anna")
    save(one, {shared: PlacedState(5, "five ü"), anna: PlacedState(2, "two")})
    save(other, {shared: PlacedState(4, "four"), else_: PlacedState(1, "x")}, base=3)
    save(one, {}, base=2)
    save(one, {shared: PlacedState(9, "lost")}, base=4)
    every = {shared: (5, "five ü"), anna: (2, "two"), else_: (1, "x")}
    assert other.load([shared, anna, else_, ("app", "nobody")]) == every
    assert other.load_now(anna) == (2, "two")
    assert other.load_now(("app", "nobody")) is None
    assert one.read(0, 1).base == 3
    save(one, {}, deleted={"app": 5})
    assert other.load([shared, anna, else_]) == {shared: (5, "five ü"), else_: (1, "x")}
    users = {("app", user): PlacedState(place, "") for place, user in enumerate("bcd", 6)}
    save(one, users, most_users={"app": 2})
    assert other.load([*users, shared]).keys() == {shared, ("app", "c"), ("app", "d")}


def test_the_log_is_trimmed_behind_what_all_states_learnt(
    opened: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for some places; and a key stays known longer."""
    monkeypatch.setattr(f"{type(opened()).__module__}.KEPT_PLACES", 3)
    store = opened()
    store.append([Told(key, "app", "") for key in range(1, 11)])
    store.save({}, base=5, deleted={}, most_users={})
    page = store.read(0, 20)
    assert page[:3] == (5, 5, 10)
    assert [place.number for place in page.places] == [6, 7, 8, 9, 10]
    store.save({}, base=10, deleted={}, most_users={})
    assert [place.number for place in store.read(0, 20).places] == [8, 9, 10]
    store.append([Told(1, "app", "")])
    assert store.read(0, 20).last == 10


def test_a_decision_is_found_until_it_has_feedback(opened: Callable[[], SharedStore]) -> None:
    """By its id, and by user and input, the newest, or one without a user.

    It may be kept once more, by a gateway that does not know whether it was; not after its feedback.
    """
    one, other = opened(), opened()
    one.keep_decisions([kept(1), kept(2), kept(3, user=""), kept(4, hashed="i")])
    assert other.find_decision("app", 1) == "text 1"
    assert other.find_decision("other", 1) is None
    assert other.find_by_input("app", "u", "h") == "text 2"
    assert other.find_by_input("app", "v", "h") == "text 3"
    assert other.find_by_input("app", "v", "j") is None
    other.append([Told(4, "app", ""), Told(2, "app", "")])
    one.keep_decisions([kept(4, hashed="i"), kept(1)])
    assert one.find_decision("app", 4) is None
    assert one.find_by_input("app", "u", "i") is None
    assert one.find_by_input("app", "u", "h") == "text 1"


def found(store: SharedStore) -> list[int]:
    return [key for key in range(1, 10) if store.find_decision("app", key)]


def test_the_oldest_decisions_are_dropped(
    opened: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of them, and of their bytes, for each application."""
    store = opened()
    monkeypatch.setattr(f"{type(store).__module__}.KEPT_DECISIONS", 4)
    monkeypatch.setattr(f"{type(store).__module__}.KEPT_BYTES", 100)
    store.keep_decisions([kept(key) for key in (1, 2, 3, 4)])
    store.keep_decisions([kept(5), kept(6)._replace(application="other")])
    assert found(store) == [2, 3, 4, 5]
    store.keep_decisions([kept(7, text="x" * 88)])
    assert found(store) == [4, 5, 7]
    store.keep_decisions([kept(8, text="x" * 101)])
    assert found(store) == []
    store.keep_decisions([kept(9)])
    assert found(store) == [9]
    assert store.find_decision("other", 6) == "text 6"


@pytest.mark.parametrize("part", ["", ":order", ":keys", ":bytes", ":inputs"])
def test_what_redis_evicts_ends_no_write(
    part: str, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever part of the decisions is gone: the bounds hold, and new ones are found."""
    monkeypatch.setattr("serving.selection.stores.redis_shared.KEPT_DECISIONS", 3)
    monkeypatch.setattr("serving.selection.stores.redis_shared.KEPT_BYTES", 30)
    store = RedisShared(redis[1], patience_s=PATIENCE_S)
    store.keep_decisions([kept(key) for key in (1, 2, 3)])
    assert store._client.delete(f"luthier:decisions:app{part}") == 1
    for key in (4, 5, 6, 7):
        store.keep_decisions([kept(key)])
        assert store.find_by_input("app", "u", "h") == f"text {key}"
    assert found(store) == [5, 6, 7]
    assert int(store._client.get("luthier:decisions:app:bytes")) == 3 * len("text 7")
    store.close()


def test_a_deleted_applications_decisions_go(opened: Callable[[], SharedStore]) -> None:
    """Those before the place of its deletion, not those of another one with its name."""
    store = opened()
    none: Any = {"base": 0, "most_users": {}}
    store.keep_decisions([kept(1), kept(2), kept(3)._replace(application="other")])
    (place,) = store.append([Told(100, "app", "{}")])
    store.keep_decisions([kept(4)])
    store.save({}, deleted={"app": place}, **none)
    assert found(store) == [4]
    assert store.find_by_input("app", "u", "h") == "text 4"
    (place,) = store.append([Told(101, "app", "{}")])
    for _ in range(2):
        store.save({}, deleted={"app": place}, **none)
        assert found(store) == []
        assert store.find_by_input("app", "u", "h") is None
    assert store.find_decision("other", 3) == "text 3"


# Laws of the exchange


WRITES = ("keep_decisions", "append", "read", "load", "save")
"""Calls of a round, which may fail."""


class Unreliable:
    """A store whose calls fail as drawn: before they do anything, or when they have done it."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.faults: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        def tried(*arguments: Any, **more: Any) -> Any:
            fault = self.faults.pop() if self.faults and name in WRITES else ""
            if fault == "before":
                raise NotReady("away")
            done = call(*arguments, **more)
            if fault == "after":
                raise NotReady("the answer is lost")
            return done

        return tried


class Gateway:
    """Selection on one gateway: an application over an exchange, in rounds made by the test."""

    def __init__(self, store: SharedStore, **more: Any) -> None:
        self.store = Unreliable(store)
        self.exchange = feedback_exchange.FeedbackExchange(self.store)
        options = {"models": ("a", "b"), "policy": "exp3", **more}
        self.selector = Selector(Application(name="app", **options))
        self.add()

    def add(self) -> None:
        self.states = SharedUserStates(self.selector, self.exchange, capacity=2)
        self.decisions = SharedDecisions("app", self.exchange)
        self.exchange.attach("app", self.states, self.decisions)

    async def sync(self, **more: Any) -> None:
        with contextlib.suppress(NotReady):
            await self.exchange.sync(**more)

    def link(self, models: tuple[str, ...]) -> None:
        application = dataclasses.replace(self.selector.application, models=models)
        self.selector = Selector(application)
        self.states.relink(self.selector)
        self.exchange.relink("app", models)

    def feedback(self, key: int, truth: str) -> bool:
        found = self.decisions.find(key)
        if found is None:
            return False
        self.states.observe(found, truth)
        self.decisions.join(found)
        return True


def steps_of(
    *whats: str, least: int = 0
) -> st.SearchStrategy[list[tuple[int, str, int, str, str]]]:
    """Which gateway, what happens to it, and with what."""
    step = st.tuples(
        st.sampled_from((0, 1)),
        st.sampled_from(("ask", "tell", "tell", "sync", "save", "before", "after", "kill", *whats)),
        st.integers(0, 7),
        st.sampled_from("ab"),
        st.sampled_from(("", "u", "v", "w")),
    )
    return st.lists(step, min_size=least, max_size=50)


class World:
    """Two gateways over one file, and what a history did with them."""

    def __init__(self, path: pathlib.Path, contexts: str) -> None:
        self.path, self.contexts = path, contexts
        self.linked: tuple[str, ...] = ("a", "b")
        self.closed = contextlib.ExitStack()
        self.both = [self.start(), self.start()]
        self.asked: list[tuple[int, str]] = []
        self.told: set[int] = set()
        self.lost: set[int] = set()
        self.marked: sqlite3.Connection | None = None

    def start(self) -> Gateway:
        """A gateway that comes later."""
        gateway = Gateway(SqliteShared(self.path), contexts=self.contexts)
        self.closed.callback(gateway.exchange.close)
        gateway.link(self.linked)
        return gateway

    async def step(self, at: int, what: str, number: int, truth: str, user: str) -> None:
        """Something happens to one gateway."""
        gateway = self.both[at]
        if what == "ask":
            key = gateway.exchange.next_id()
            gateway.decisions.put(decision(key, user, truth))
            self.asked.append((key, user))
        elif what == "tell" and self.asked:
            key, _ = self.asked[number % len(self.asked)]
            if gateway.feedback(key, truth):
                self.told.add(key)
        elif what in ("sync", "save"):
            await gateway.sync(save=what == "save")
        elif what == "link":
            self.linked = ("a", "b", "c")[: 2 + number % 2]
            for one in (gateway, self.both[1 - at]):
                one.link(self.linked)
        elif what in ("before", "after"):
            gateway.store.faults.append(what)
        elif what == "delete":
            gateway.exchange.delete("app")
            gateway.add()
            gateway.link(self.linked)
        elif what == "mark":
            self.marked = self.closed.enter_context(contextlib.closing(sqlite3.connect(":memory:")))
            with contextlib.closing(sqlite3.connect(self.path)) as file:
                file.backup(self.marked)
        elif what == "lose" and self.marked is not None:
            self.lose(self.marked)
        elif what == "kill":
            self.lost |= gateway.exchange._waiting.keys()
            for backlog in (gateway.exchange._waiting, gateway.exchange._decisions):
                backlog.discard(list(backlog.keys()))
            self.both[at] = self.start()

    def lose(self, marked: sqlite3.Connection) -> None:
        """What was written since the mark is lost; not the ids, which outrun the clock here."""
        held = "SELECT key FROM log"
        ids = "SELECT value FROM numbers WHERE name = 'ids'"
        with contextlib.closing(sqlite3.connect(self.path)) as file:
            keys, (next_id,) = set(file.execute(held)), file.execute(ids).fetchone()
            marked.backup(file)
            self.lost |= {key for (key,) in keys - set(file.execute(held))}
            file.execute("UPDATE numbers SET value = ? WHERE name = 'ids'", (next_id,))
            file.commit()

    async def settle(self) -> list[LogText]:
        """All works again, rounds go on, and one more gateway comes; returns the log."""
        for _ in range(3):
            for gateway in self.both:
                gateway.store.faults.clear()
                await gateway.sync(save=True)
        self.both.append(self.start())
        await self.both[-1].sync()
        page = self.both[0].store.read(0, 1000)
        keys = [place.told.key for place in page.places]
        assert len(set(keys)) == len(keys) == page.last
        return [decision_json.read_log(place.told.text) for place in page.places]

    def check(self, log: Sequence[LogText]) -> None:
        """All gateways, and one that comes now, have what the log says."""
        fed = {one.feedback.key for one in log if one.feedback is not None}
        assert self.told - self.lost <= fed <= self.told
        every = self.both
        are_linked_anew = any(said.models not in (None, ("a", "b")) for said in log)
        # A link reaches gateways at slightly different places of the log (docs/gateways.md).
        most = SHIFT_BY_LINKS if are_linked_anew else 0.0
        for user in dict.fromkeys(["", *(user for _, user in self.asked)]):
            one, *others = (gateway.states.state(user) for gateway in every)
            for other in others:
                assert one.models == other.models
                assert one.logs == pytest.approx(other.logs, rel=0.0, abs=most)
        for user, state in replayed(log, every[0].selector, self.contexts).items():
            # A user's first state is written with the models that were linked when it was told.
            if user == "" or not are_linked_anew:
                assert every[0].states.state(user) == state


SHIFT_BY_LINKS = 0.05
"""Most by which a weight's logarithm may differ between gateways after a link."""


def replayed(log: Sequence[LogText], selector: Selector, contexts: str) -> dict[str, Any]:
    """The states by user that a log makes."""
    policy = selector.policy
    states: dict[str, Any] = {"": policy.initial(("a", "b"))}
    for said in log:
        if said == LogText():
            states = {"": policy.initial(("a", "b"))}
            continue
        if said.feedback is None:
            assert said.models is not None
            states = {user: policy.relink(state, said.models) for user, state in states.items()}
            continue
        feedback = said.feedback
        its = feedback.decision.query.user if contexts == "user" else ""
        for user in dict.fromkeys((its, "")):  # a new user starts from what was learnt before
            if user not in states:
                states[user] = (
                    policy.initial_for_user(states[""])
                    if said.initial is None
                    else selector.parse_state(said.initial)
                )
            states[user] = policy.observe(states[user], feedback.decision, feedback.truth)
    return states


def history(text: str) -> list[tuple[int, str, int, str, str]]:
    """Steps from a text: `0 ask u, 1 tell 0` is u's query at gateway 0, whose loss is told to 1."""
    steps = []
    for step in text.split(","):
        at, what, *more = step.split()
        subject = more[0] if more else ""
        number = int(subject) if subject.isdigit() else 0
        user = subject if what == "ask" else ""
        steps.append((int(at), what, number, "b" if what == "ask" else "a", user))
    return steps


LOST_BEFORE_THE_FIRST_ROUND = history(
    "0 ask, 0 ask, 0 ask, 0 sync, 0 delete, 0 mark, 0 save, 1 kill, 1 delete, 0 lose, 0 tell 0, 1 sync"
)
"""The log loses its end, and grows as far again, before a gateway that has just begun looks at it."""


DROPPED_AMID_A_PAGE = history(
    "1 ask u, 1 tell 0, 1 save, 0 save, 1 ask v, 1 ask u, 1 tell 1, 1 tell 2, 1 sync, 0 sync"
)
"""A user's state makes way for another's of the same page, and is needed again."""


KEPT_AGAIN = history(
    "0 ask u, 0 after, 0 sync, 1 tell 0, 1 sync, 0 sync, 1 tell 0, 0 sync, 1 tell 0"
)
"""A decision is written, the answer is lost, and it is written again after its feedback."""
LOST_END = history(
    "0 ask u, 0 tell 0, 0 save, 1 sync, 0 mark, 0 ask u, 0 tell 1, 0 sync, 1 save, 0 lose, "
    "1 ask u, 1 tell 2, 1 ask u, 1 tell 3, 1 sync"
)
"""The log loses what a gateway has replayed, and has grown beyond when that one looks again."""


DELETED = history(
    "0 ask u, 0 tell 0, 0 save, 1 sync, 0 delete, 0 ask u, 0 tell 1, 1 ask v, 1 tell 2, 0 sync, 1 sync"
)
"""An application is deleted, comes again at once, and is told of queries before and after."""

TOLD_BEFORE = history("0 ask u, 0 sync, 1 delete, 0 tell 0, 1 tell 0")
"""One gateway is told before another's deletion of what that one is told after it."""


@example(steps=TOLD_BEFORE, contexts="shared")
@example(steps=LOST_BEFORE_THE_FIRST_ROUND, contexts="shared")
@example(steps=DROPPED_AMID_A_PAGE, contexts="user")
@example(steps=DELETED, contexts="user")
@example(steps=KEPT_AGAIN, contexts="user")
@example(steps=LOST_END, contexts="shared")
@example(steps=LOST_END, contexts="user")
@settings(max_examples=20)
@given(
    steps=st.one_of(steps_of("link"), steps_of("delete", "mark", "lose", least=25)),
    contexts=st.sampled_from(("shared", "user")),
)
def test_feedback_counts_once_on_all_gateways(steps: Any, contexts: str) -> None:
    """Whoever is told, and whatever fails or ends meanwhile: all end with the log replayed.

    What is not in the log was in a gateway that was killed, or in the end that the store lost.
    """

    async def play() -> None:
        with tempfile.TemporaryDirectory() as name:
            world = World(pathlib.Path(name) / "states.db", contexts)
            with world.closed:
                for step in steps:
                    await world.step(*step)
                world.check(await world.settle())

    asyncio.run(play())


async def test_a_gateway_that_the_log_left_behind_starts_from_the_store(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it was told itself: what the log took meanwhile, and what it did not."""
    monkeypatch.setattr("serving.selection.stores.sqlite_shared.KEPT_PLACES", 1)
    gateways = [Gateway(SqliteShared(tmp_path / "states.db")) for _ in range(2)]
    one, behind = gateways
    for gateway in gateways:
        for _ in range(3):
            key = gateway.exchange.next_id()
            gateway.decisions.put(decision(key))
            gateway.feedback(key, "b")
    behind.store.faults = ["", "after"]  # its feedback is written, and it does not hear of that
    behind.store.faults.reverse()
    await behind.sync()
    for _ in range(5):
        key = one.exchange.next_id()
        one.decisions.put(decision(key))
        one.feedback(key, "a")
        await one.sync(save=True)
    last = behind.exchange.next_id()
    behind.decisions.put(decision(last))
    behind.feedback(last, "b")
    await behind.sync(save=True)
    await one.sync(save=True)
    await behind.sync(save=True)
    page = one.store.read(0, 100)
    assert (page.last, page.trimmed > 3) == (13, True)  # the models were told once more
    assert behind.states.state("") == one.states.state("")
    for gateway in gateways:
        gateway.exchange.close()


async def test_what_one_gateway_learnt_several_go_on_with_and_back(tmp_path: pathlib.Path) -> None:
    """In the same folder, whichever was there last."""
    path = tmp_path / "states.db"
    selector = Selector(Application(name="app", models=("a", "b"), policy="exp3"))

    def learn_alone(times: int) -> Any:
        store = SqliteStore(path)
        states = UserStates(selector, store)
        for key in range(times):
            states.observe(decision(key), "b")
        store.close()
        return states.state("")

    async def learn_together(times: int) -> Any:
        one, other = Gateway(SqliteShared(path)), Gateway(SqliteShared(path))
        for gateway in (one, other) * times:
            key = gateway.exchange.next_id()
            gateway.decisions.put(decision(key))
            gateway.feedback(key, "b")
        for gateway in (one, other, one):
            await gateway.sync(save=True)
        assert one.states.state("") == other.states.state("")
        one.exchange.close()
        other.exchange.close()
        return one.states.state("")

    state = selector.initial()
    key = 0
    for learnt in (
        learn_alone(2),
        await learn_together(1),
        await learn_together(1),
        learn_alone(2),
        await learn_together(1),
    ):
        for _ in range(2):
            state = selector.policy.observe(state, decision(key), "b")
        assert learnt == state


async def test_a_deleted_application_begins_anew(tmp_path: pathlib.Path) -> None:
    """On all gateways, whatever they had learnt, and at the next start."""
    one, other = (Gateway(SqliteShared(tmp_path / "states.db")) for _ in range(2))
    new = one.states.state("")
    for gateway in (one, other):
        key = gateway.exchange.next_id()
        gateway.decisions.put(decision(key))
        gateway.feedback(key, "b")
        await gateway.sync(save=True)
    await one.sync(save=True)
    assert one.states.state("") == other.states.state("") != new
    one.exchange.delete("app")
    one.states = SharedUserStates(one.selector, one.exchange)
    one.exchange.attach("app", one.states, one.decisions)
    one.exchange.flush()
    for gateway in (one, other):
        await gateway.sync(save=True)
        assert gateway.states.state("") == new
    third = Gateway(SqliteShared(tmp_path / "states.db"))
    assert third.states.state("") == new
    for gateway in (one, other, third):
        gateway.exchange.close()


async def test_an_outage_ends_in_small_writes(tmp_path: pathlib.Path) -> None:
    """What is written is not written again after a failure; the oldest decisions make way."""
    one = Gateway(SqliteShared(tmp_path / "states.db"))
    one.exchange._decisions.capacity = 1101
    for key in range(1, 1201):
        one.exchange.keep_decision("app", decision(key))
    assert list(one.exchange._decisions.keys()) == list(range(101, 1201))
    one.store.faults = ["before", ""]  # the last is first: one piece is written
    with pytest.raises(NotReady):
        await one.exchange.sync()
    assert list(one.exchange._decisions.keys()) == list(range(601, 1201))
    await one.exchange.sync()
    assert [key for key in range(1, 1201) if one.store.find_decision("app", key)] == list(
        range(101, 1201)
    )
    one.exchange._waiting.capacity_bytes = 1000
    with pytest.raises(NotReady, match=r"feedbacks \(\d+ bytes\) are already waiting"):
        for key in range(1101, 1201):
            one.feedback(key, "a")
    assert one.exchange._waiting.bytes <= 1000
    one.exchange.close()


async def test_a_deletion_under_feedback_does_not_hold_the_log(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What gateways were told that did not know of it is dropped after a time, and the log goes on."""
    one, other = (Gateway(SqliteShared(tmp_path / "states.db")) for _ in range(2))
    other.decisions.put(decision(1))
    one.exchange.delete("app")
    await one.sync(save=True)
    other.feedback(1, "b")
    other.exchange._saved_s = float("inf")  # no save is due
    await other.sync()
    other.exchange.detach("app")
    await one.sync(save=True)
    page = one.store.read(0, 10)
    assert page.base == page.last - 1
    monkeypatch.setattr(feedback_exchange, "_EARLY_S", 0.0)
    await one.sync(save=True)
    assert one.store.read(0, 10).base == page.last
    one.exchange.close()
    other.exchange.close()


async def test_nobody_reads_the_states_of_a_deleted_application(tmp_path: pathlib.Path) -> None:
    """Not who deleted it, nor who has replayed that; though they are in the store until a save."""
    path = tmp_path / "states.db"
    one, other = Gateway(SqliteShared(path)), Gateway(SqliteShared(path))
    one.decisions.put(decision(1))
    one.feedback(1, "b")
    await one.sync(save=True)
    await other.sync(save=True)
    assert other.exchange.load_now("app", "") is not None
    one.exchange.delete("app")
    assert one.exchange.load_now("app", "") is None
    one.exchange.flush()
    other.exchange._saved_s = float("inf")  # no save is due
    await other.sync()
    assert other.store.load_now(("app", "")) is not None
    assert other.exchange.load_now("app", "") is None
    one.exchange.close()
    other.exchange.close()


async def test_ten_thousand_feedbacks_while_redis_is_away(redis: Any) -> None:
    """Over two gateways, each half: it is killed amid them; queries go on, none is lost or counts twice."""
    process, url = redis
    one, other = (Gateway(RedisShared(url, patience_s=PATIENCE_S)) for _ in range(2))
    tasks = [asyncio.create_task(gateway.exchange.run()) for gateway in (one, other)]
    told = 0
    again = contextlib.ExitStack()
    for number in range(10_000):
        if number == 3000:
            process.kill()
            process.wait(10)
        elif number == 7000:
            assert one.exchange.place < number
            again.enter_context(running_redis(pathlib.Path(url.removeprefix("unix://")).parent))
        gateway = (one, other)[number % 2]
        key = gateway.exchange.next_id()
        gateway.states.for_query("")
        gateway.decisions.put(decision(key, said="ab"[number % 3 == 0]))
        told += gateway.feedback(key, "a")
        if number % 100 == 0:
            await asyncio.sleep(0.005)
    assert told == 10_000
    async with asyncio.timeout(30.0):
        while min(one.exchange.place, other.exchange.place) < told:
            await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    with again:
        page = one.store.read(0, 20_000)
        assert page.last == told
    assert one.exchange.place == other.exchange.place == told
    assert one.states.state("") == other.states.state("")
    for gateway in (one, other):
        gateway.exchange.close()


# A Redis server that is away


async def test_a_redis_server_that_hangs_costs_one_short_wait(redis: Any) -> None:
    """Stopped with its connections open: the first load waits a moment, the others not; it is found again."""
    process, url = redis
    store = RedisShared(url)
    try:
        store.save({("app", "u"): PlacedState(1, "x")}, base=0, deleted={}, most_users={})
        process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        for _ in range(100):
            with pytest.raises(NotReady, match=r"does not answer: no response within 0.1 s"):
                store.load_now(("app", "u"))
        assert time.monotonic() - began_s < 1.0
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(20.0):
            while True:
                try:
                    found = store.load_now(("app", "u"))
                    break
                except NotReady:
                    await asyncio.sleep(0.02)
        assert found == (1, "x")
    finally:
        process.send_signal(signal.SIGCONT)
        store.close()


def test_an_address_that_is_none_is_refused() -> None:
    """With what it should look like from redis-py; without the package, with how to get it."""
    with pytest.raises(InvalidSettings, match=r"address 'nowhere'|luthier\[redis\]"):
        RedisShared("nowhere")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("redis://:secret@localhost/0", "set LUTHIER_STATE_STORE_PASSWORD"),
        ("redis://localhost/0?password=secret", "set LUTHIER_STATE_STORE_PASSWORD"),
        ("redis://localhost/0?colour=red", "colour"),
        ("redis://[", "address"),
    ],
)
def test_what_is_wrong_with_an_address_is_one_line(address: str, text: str) -> None:
    """A password in it would be shown to whoever sees settings; it is in no error's text either."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    with pytest.raises(InvalidSettings, match=text) as refused:
        RedisShared(address)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_redis_server_may_ask_for_a_password() -> None:
    """With it all is as without; none, or another one, is told at once."""
    with (
        tempfile.TemporaryDirectory() as name,
        running_redis(pathlib.Path(name), "--requirepass", "secret") as (_, url),
    ):
        store = RedisShared(url, password="secret", patience_s=PATIENCE_S)
        assert store.reserve_ids(1, at_least=7) == 7
        store.close()
        for password in (None, "other"):
            with pytest.raises(NotReady, match="does not answer"):
                RedisShared(url, password=password)


# Small parts


@pytest.mark.parametrize(
    "answer", [Label("ü"), Number(0.1), Scores(("a", "b"), (0.1, 0.9))], ids=str
)
def test_a_decision_comes_back_from_its_json(answer: Any) -> None:
    """Whatever the models answered; another text is told."""
    one = Decision(
        query=Query(id=2**52, user="ü\0", input_hash="h"),
        choice=Choice(models=("a",), probabilities={"a": 1 / 3}),
        answers={"a": answer},
        output=0.1,
        is_default=True,
    )
    assert decision_json.read_decision(decision_json.write_decision(one)) == one
    for said in (LogText(Feedback(one, 0.1), "initial"), LogText(), LogText(models=("ü",))):
        assert decision_json.read_log(decision_json.write_log(said)) == said
    for wrong in ("[]", "7", "x", '{"query": 1}', '{"decision": {}}'):
        with pytest.raises(ValueError, match=r"."):
            decision_json.read_decision(wrong)


def test_ids_go_on_over_blocks() -> None:
    """The next block is wanted in time; without it none is given twice, and none at last."""
    ids = QueryIds(100, 3)
    assert ids.wants_block
    assert [ids.take() for _ in range(4)] == [100, 101, 102, None]
    ids.add_block(1000)
    assert not ids.wants_block
    assert [ids.take(), ids.take()] == [1000, 1001]
    assert not QueryIds(0, BLOCK).wants_block
    alone = QueryIds(5)
    assert [alone.take(), alone.take(), alone.wants_block] == [5, 6, False]
