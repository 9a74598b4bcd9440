"""Studies in a real PostgreSQL server: they go on there, and one hub owns them over machines."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import optuna
import pytest
import sqlalchemy
from optuna.distributions import IntDistribution

from tests.fakes.commands import tune
from tests.fakes.postgresql_server import running_postgresql
from tuner.errors import StorageFailed, StudyBusy, UnknownStudy
from tuner.store import study_store
from tuner.store.run_folder import RunFolder
from tuner.store.study_store import StudyStore
from tuner.store.trial_rows import TrialResult
from tuner.study import creation
from tuner.values.trial import OK

pytestmark = pytest.mark.processes

DISTRIBUTIONS = {"replica.count": IntDistribution(1, 4)}
STUDY = (
    *(
        "--model",
        "echo",
        "--concurrency",
        "2",
        "--trials",
        "2",
        "--initial",
        "2",
        "--seconds",
        "0.4",
    ),
    *("--warmup", "0.1", "--pairs", "2", "--study", "p"),
)
HOLDER = """
import sys, time, pathlib
from tuner.store.study_store import StudyStore
with StudyStore.open_study("held", database=pathlib.Path("none"), url=sys.argv[1]).hold_lock():
    print("held", flush=True)
    time.sleep(120)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """URL of a running server."""
    with running_postgresql() as found:
        yield found


def stored(name: str, url: str) -> StudyStore:
    return StudyStore.create(name, database=pathlib.Path("none"), url=url, facts={"model": "echo"})


def reopened(name: str, url: str) -> StudyStore:
    return StudyStore.open_study(name, database=pathlib.Path("none"), url=url)


def end_sessions_with_locks(store: StudyStore) -> None:
    """As an administrator, or a timeout, does."""
    assert store._storage is not None
    held = "select pg_terminate_backend(pid, 10000) from pg_locks where locktype = 'advisory'"
    with store._storage.engine.connect() as connection:
        assert connection.execute(sqlalchemy.text(held)).scalars().all() == [True]


def test_trials_come_back_as_they_were_told(url: str) -> None:
    store = stored("told", url)
    store.use_sampler(optuna.samplers.RandomSampler(seed=1))
    result = TrialResult(
        outcome=OK,
        measurement=None,
        objective=12.5,
        startup_s=0.1,
        overhead_s=0.2,
        started_at=1.79e9,
        node="first/10.0.0.1",
    )
    trial = store.tell(store.ask(DISTRIBUTIONS, else_origin="initial"), result)
    assert reopened("told", url).trials() == (trial,)
    assert trial.node == "first/10.0.0.1"


def test_a_lock_holds_over_processes_and_ends_with_its_own(url: str) -> None:
    """A second hub is refused, also when the first was killed a moment ago; another study is not."""
    stored("held", url)
    other = stored("other", url)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with (
                pytest.raises(StudyBusy, match="'held' is in use by another process"),
                reopened("held", url).hold_lock(),
            ):
                pytest.fail("both have it")
            with other.hold_lock():
                pass
        finally:
            holder.kill()
    with reopened("held", url).hold_lock():
        pass


def test_nothing_is_written_once_the_lock_is_lost(url: str) -> None:
    """Whoever ends its session, so that another hub may own the study; the other connections live."""
    store, other = stored("lost", url), reopened("lost", url)
    with store.hold_lock():
        store.note("mine")
        end_sessions_with_locks(other)
        with other.hold_lock():
            for write in (
                lambda: store.ask(DISTRIBUTIONS, else_origin="initial"),
                lambda: store.keep_used_s(1.0),
                lambda: store.give_up_running("its process ended"),
            ):
                with pytest.raises(
                    StorageFailed, match=r"^the lock of study 'lost' .* is lost"
                ) as caught:
                    write()
                assert "\n" not in str(caught.value)
            other.note("theirs")
    assert store.notes() == ("mine", "theirs")
    assert store.used_s() == 0.0


def test_a_lock_outlasts_the_time_for_idle_sessions(url: str) -> None:
    """Which a server may have for all others."""
    store = stored("idle", f"{url}&options=-c%20idle_session_timeout%3D3600000")
    asked = sqlalchemy.text("show idle_session_timeout")
    assert store._storage is not None
    with store.hold_lock(), store._storage.engine.connect() as usual:
        assert usual.execute(asked).scalar() == "1h"
        assert store._lock is not None
        assert store._lock._connection.execute(asked).scalar() == "0"


def test_a_study_that_runs_elsewhere_is_not_overwritten(url: str, tmp_path: pathlib.Path) -> None:
    """Neither it nor this machine's folder of that name."""
    store = stored("o", url)
    folder = RunFolder(tmp_path, "o")
    folder.create({}, {})
    with store.hold_lock(), pytest.raises(StudyBusy, match="'o' is in use by another process"):
        creation._delete(folder, url)
    assert folder.exists()
    assert reopened("o", url).facts() == {"model": "echo"}
    creation._delete(folder, url)
    assert not folder.exists()
    with pytest.raises(UnknownStudy):
        reopened("o", url)


def test_a_study_goes_on_and_a_second_hub_is_refused(url: str, tmp_path: pathlib.Path) -> None:
    """The folder may be copied to another machine: only one of the two goes on at a time."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    done = tune(first, *STUDY, "--storage", url, "--json")
    assert done.code == 0, done.err
    shutil.copytree(first, second)
    (second / "runs" / "p" / "verdict.json").unlink()
    with reopened("p", url).hold_lock():
        refused = tune(second, "resume", "p", "--storage", url)
    assert refused.code != 0
    assert refused.err.splitlines()[-1].startswith("tune: study 'p' is in use by another process")
    resumed = tune(second, "resume", "p", "--storage", url, "--json")
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out)["trials"] == json.loads(done.out)["trials"] == 2


def test_a_server_that_is_away_is_one_line() -> None:
    pytest.importorskip("psycopg", reason="it is an extra")
    with pytest.raises(StorageFailed, match="check its space, permissions and address") as caught:
        reopened("any", "postgresql://u:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_store.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(StorageFailed, match=r"pip install 'luthier\[postgresql\]'$"):
        reopened("any", "postgresql://h/db")
