"""One contract for every store of states; and what each promises beyond it."""

from __future__ import annotations

import logging
import pathlib
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from serving.errors import NotReady
from serving.selection.application import Application
from serving.selection.model_output import Label
from serving.selection.policy import Decision, Query
from serving.selection.query_session import Selector
from serving.selection.stores.sqlite_store import SqliteStore
from serving.selection.stores.state_store import MemoryStore, StateStore
from serving.selection.stores.write_behind import WriteBatch, WriteBehindStore
from serving.selection.user_states import UserStates
from tests.fakes.selections import choice_of

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(params=["memory", "sqlite"])
def opened(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[Callable[[], StateStore]]:
    """Opens the store; again after it was closed, where it outlives its process."""
    made: list[StateStore] = []
    memory = MemoryStore()

    def open_() -> StateStore:
        store: StateStore = memory
        if request.param == "sqlite":
            store = SqliteStore(tmp_path / "states.sqlite", interval_s=0.01)
        made.append(store)
        return store

    yield open_
    for store in made:
        store.close()


def users(store: StateStore, among: Iterable[str], application: str = "app") -> list[str]:
    """Those of whom there is a state."""
    return [user for user in among if store.load(application, user) is not None]


def test_a_text_comes_back_as_it_was_saved(opened: Callable[[], StateStore]) -> None:
    """The last one of each context, at once and after a flush; None where there was none."""
    store = opened()
    assert store.load("app", "u") is None
    for text in ("one", "zwei ✓\n", '{"a":0.1}'):
        store.save("app", {"u": text})
        assert store.load("app", "u") == text
        store.flush()
        assert store.load("app", "u") == text


def test_applications_and_users_are_apart(opened: Callable[[], StateStore]) -> None:
    """Names with any characters, the empty user too, never meet."""
    store = opened()
    keys = [("a", ""), ("a", "b:c"), ("a:b", "c"), ("b", ""), ("a", "ü '\";--")]
    for number, key in enumerate(keys):
        store.save(key[0], {key[1]: str(number)})
    store.flush()
    assert [store.load(*key) for key in keys] == ["0", "1", "2", "3", "4"]
    assert users(store, ["", "b:c", "c"], "nobody") == []


def test_an_application_is_deleted_whole(opened: Callable[[], StateStore]) -> None:
    """All its contexts, durable or not; what is saved afterwards stays."""
    store = opened()
    store.save("app", {"u": "1"})
    store.save("other", {"u": "2"})
    store.flush()
    store.save("app", {"v": "3"})
    store.delete("app")
    assert users(store, "uvw") == []
    store.save("app", {"w": "4"})
    assert users(store, "uvw") == ["w"]
    store.flush()
    assert users(store, "uvw") == ["w"]
    assert store.load("other", "u") == "2"


def test_a_reopened_store_has_everything(opened: Callable[[], StateStore]) -> None:
    """Closing writes what was saved."""
    store = opened()
    store.save("app", {"u": "1"})
    store.delete("other")
    store.close()
    again = opened()
    assert users(again, "uv") == ["u"]
    assert again.load("app", "u") == "1"


def test_thousands_of_saves_are_a_few_batches(opened: Callable[[], StateStore]) -> None:
    """The last text of each of many contexts is there."""
    store = opened()
    for number in range(3000):
        store.save("app", {str(number % 300): str(number)})
    store.flush()
    assert len(users(store, map(str, range(300)))) == 300
    assert store.load("app", "299") == "2999"


def test_users_are_bounded(opened: Callable[[], StateStore]) -> None:
    """Those go that were saved the longest ago, those of before there was a bound first; everybody's state stays."""
    store = opened()
    store.save("app", {"": "everybody's"})
    for user in ("z", "y", "x", "w"):
        store.save("app", {user: user})
        store.save("other", {user: user})
        store.flush()
    store.keep_most("app", 3)
    store.save("app", {"y": "again"})
    store.flush()
    store.save("app", {"v": "v"})
    store.flush()
    # Of those that were saved before there was a bound a Redis server does not know when.
    assert users(store, ["", *"vwxyz"]) in (["", "v", "w", "y"], ["", "v", "y", "z"])
    store.save("app", {"u": "u"})
    store.flush()
    store.save("app", {"y": "once more"})
    store.flush()
    store.save("app", {"t": "t"})
    store.flush()
    assert users(store, ["", *"tuvwxyz"]) == ["", "t", "u", "y"]
    assert store.load("app", "y") == "once more"
    assert len(users(store, "wxyz", "other")) == 4


def test_no_number_of_users_grows_a_store(opened: Callable[[], StateStore]) -> None:
    """A thousand made-up names, in many batches, and again after a restart."""
    store = opened()
    store.keep_most("app", 200)
    names: list[str] = []
    for round_ in range(2):
        for number in range(1000):
            names.append(f"{round_}-{number}")
            store.save("app", {names[-1]: "text"})
            if number % 100 == 99:
                store.flush()
        kept = users(store, names)
        assert len(kept) <= 200
        assert names[-1] in kept
        store.close()
        store = opened()
        store.keep_most("app", 200)
    store.delete("app")
    store.save("app", {"u": "1"})
    store.flush()
    assert users(store, ["u", *names[-300:]]) == ["u"]


CHILD = """
import pathlib, sys
from serving.selection.stores.sqlite_store import SqliteStore
store = SqliteStore(pathlib.Path(sys.argv[1]), interval_s=0.02)
for number in range(10**9):
    store.save("app", {str(number % 50): str(number)})
    if number % 500 == 499:
        store.flush()
        print(number, flush=True)
"""


def test_a_killed_process_loses_at_most_the_last_batch(tmp_path: pathlib.Path) -> None:
    """SIGKILL in the midst of writes: the file is whole, and has all that was flushed."""
    path = tmp_path / "states.sqlite"
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            for _ in range(10):
                flushed = int(child.stdout.readline())
            child.kill()
            flushed = max([flushed, *map(int, child.stdout.read().split())])
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        store = SqliteStore(path)
        found = [int(store.load("app", user) or -1) for user in map(str, range(50))]
        store.close()
        assert len(found) == 50
        assert min(found) > flushed - 50
        assert all(flushed - 50 < number <= flushed + 500 for number in found)
        path.unlink()


def test_a_file_of_before_there_was_a_bound_is_taken(tmp_path: pathlib.Path) -> None:
    """Its rows lack the time of their save; they go before all others."""
    path = tmp_path / "states.db"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE states (application TEXT NOT NULL, user TEXT NOT NULL, text TEXT NOT NULL,"
        " PRIMARY KEY (application, user)) WITHOUT ROWID"
    )
    rows = [("app", user, "old") for user in ("", "u", "v")]
    connection.executemany("INSERT INTO states VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    path.chmod(0o644)
    store = SqliteStore(path)
    store.keep_most("app", 1)
    store.save("app", {"a": "new"})
    store.close()
    store = SqliteStore(path)
    assert users(store, ["", *"auv"]) == ["", "a"]
    assert store.load("app", "") == "old"
    store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_processes_may_share_a_file(tmp_path: pathlib.Path) -> None:
    """What one has flushed the other loads."""
    one = SqliteStore(tmp_path / "s.sqlite")
    other = SqliteStore(tmp_path / "s.sqlite")
    one.save("app", {"u": "1"})
    one.flush()
    assert other.load("app", "u") == "1"
    other.save("app", {"u": "2"})
    other.flush()
    assert one.load("app", "u") == "2"
    one.close()
    other.close()


def test_a_file_that_cannot_be_opened_is_said(tmp_path: pathlib.Path) -> None:
    """With its path and the reason."""
    with pytest.raises(NotReady, match="cannot be opened: unable to open database file"):
        SqliteStore(tmp_path / "no folder" / "states.sqlite")
    (tmp_path / "text").write_text("this is no database, and long enough to be looked at" * 30)
    with pytest.raises(NotReady, match="file is not a database"):
        SqliteStore(tmp_path / "text")


class StoreAnywhere(WriteBehindStore):
    """Keeps what it is given to write, while it is not away."""

    def __init__(self, *, max_waiting: int = 100, interval_s: float = 0.005) -> None:
        self.away: Exception | None = None
        self.written: dict[tuple[str, str], str] = {}
        super().__init__(interval_s=interval_s, name="test", max_waiting=max_waiting)

    def _read(self, application: str, user: str) -> str | None:
        if self.away is not None:
            raise self.away
        return self.written.get((application, user))

    def _write(self, batch: WriteBatch) -> None:
        if self.away is not None:
            raise self.away
        for key in [key for key in self.written if key[0] in batch.applications]:
            del self.written[key]
        self.written.update(batch.texts)


def flush_at_last(store: StateStore) -> None:
    """Flush a store that works again."""
    for _ in range(200):
        try:
            store.flush()
            break
        except NotReady:  # a write that had begun before
            continue


def test_an_outage_is_told_once_whatever_waits_to_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is read from memory meanwhile says nothing of the store."""
    caplog.set_level(logging.INFO)
    store = StoreAnywhere()
    store.away = NotReady("away")
    store.save("a", {"u": "1"})
    for _ in range(3):
        assert store.load("a", "u") == "1"
        with pytest.raises(NotReady):
            store.load("a", "v")
    with pytest.raises(NotReady):
        store.flush()
    store.away = None
    assert store.load("a", "v") is None
    store.close()
    told = [record.message.partition(";")[0] for record in caplog.records]
    assert sorted(told) == [
        "states are written again",
        "states can be read again",
        "states cannot be read",
        "states not written",
    ]


def test_what_waits_for_a_failing_store_is_bounded() -> None:
    """New contexts are refused with the reason; those that wait go on to change; when it works all is taken."""
    store = StoreAnywhere(max_waiting=3)
    store.away = OSError("disk full")
    for user in "uvw":
        store.save("a", {user: "1"})
    with pytest.raises(NotReady):
        store.flush()
    with pytest.raises(NotReady, match="3 states are already waiting to be written: disk full"):
        store.save("a", {"x": "1"})
    store.save("a", {"u": "2"})
    store.away = None
    flush_at_last(store)
    store.save("a", {"x": "1"})
    store.close()


def test_feedback_that_finds_no_room_teaches_nothing() -> None:
    """Neither the user's state nor everybody's, even if the memory holds only one: it may be sent again."""
    store = StoreAnywhere(max_waiting=2, interval_s=60.0)
    shared, own = (
        UserStates(
            Selector(Application(name=name, models=("a", "b"), policy="exp4", contexts=contexts)),
            store,
            capacity=1,
        )
        for name, contexts in (("other", "shared"), ("app", "user"))
    )
    decision = Decision(
        query=Query(id=1, user="u"),
        choice=choice_of(("a",)),
        answers={"a": Label("x")},
        output="x",
    )
    shared.observe(decision, "y")
    new = own.state("u")
    with pytest.raises(NotReady, match="2 states are already waiting"):
        own.observe(decision, "y")
    assert own.state("u") == new
    store.flush()
    own.observe(decision, "y")
    assert own.state("u") != new
    store.close()


def test_a_batch_that_fails_is_written_later_with_what_came_since() -> None:
    """Nothing is lost or reordered by a failing disk; `flush` says why it could not."""
    store = StoreAnywhere()
    store.away = OSError("disk full")
    store.save("a", {"u": "1"})
    store.save("b", {"v": "1"})
    with pytest.raises(NotReady, match="disk full"):
        store.flush()
    store.save("a", {"u": "2"})
    store.delete("b")
    assert store.load("a", "u") == "2"
    assert store.load("b", "v") is None
    store.away = None
    flush_at_last(store)
    assert store.written == {("a", "u"): "2"}
    assert store.load("a", "u") == "2"
    store.delete("a")
    store.close()
    assert store.written == {}
