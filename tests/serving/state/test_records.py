"""The record: what was written is there, whole and in order, whatever happens to the writer."""

import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.errors import NotReady, StaleRevision
from serving.state.folder import lock_folder
from serving.state.records import (
    SCHEMA,
    RecordKey,
    Revision,
    RevisionId,
    SqliteRecords,
    changed,
    newest,
)

KEYS = [
    RecordKey("model", "a"),
    RecordKey("model", "a", "1"),
    RecordKey("application", "a"),
    RecordKey("model", "ü '\";--"),
]


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "records.db"


def read(path):
    """What a record holds, for a process that opens it now."""
    records = SqliteRecords(path)
    try:
        return records.load()
    finally:
        records.close()


CHANGES = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.sampled_from(["", "x", "ü\n"])),
    max_size=5,
)


@settings(max_examples=25, deadline=None)  # each syncs a disk
@given(writes=CHANGES)
def test_a_record_is_a_dictionary_that_lasts(tmp_path_factory, writes):
    """After any writes it holds what a dictionary would, keys in the order in which they came."""
    path = tmp_path_factory.mktemp("r") / "records.db"
    expected = {}
    records = SqliteRecords(path)
    for changes in writes:
        records.write(changes)
        for key in [key for key, text in changes.items() if text is None]:
            expected.pop(key, None)
        expected |= {key: text for key, text in changes.items() if text is not None}
    assert list(records.load().items()) == list(expected.items())
    records.close()
    assert list(read(path).items()) == list(expected.items())


WRITER = """
import pathlib, sys
from serving.state.folder import lock_folder
from serving.state.records import RecordKey, SqliteRecords

with lock_folder(sys.argv[1]) as folder:
    records = SqliteRecords(folder / "records.db")
    number = int(records.load().get(RecordKey("number", "0"), "0"))
    while True:
        number += 1
        records.write({RecordKey("number", str(place)): str(number) for place in range(20)})
        print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_writes(tmp_path):
    """`kill -9` at random moments: every write that returned is there, each whole; the folder is free again."""
    draw = random.Random(7)
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            first = writer.stdout.readline()
            with pytest.raises(NotReady, match=f"in use by another server .process {writer.pid}"):
                lock_folder(str(tmp_path)).__enter__()
            time.sleep(draw.uniform(0.0, 0.04))
            writer.send_signal(signal.SIGKILL)
            numbers = [int(line) for line in [first, *writer.stdout.read().split()]]
        told = max(numbers)
        with lock_folder(str(tmp_path)) as folder:
            found = {int(text) for text in read(folder / "records.db").values()}
        assert len(found) == 1, "a write is there whole or not at all"
        assert found.pop() in (told, told + 1), "at most the write that was not told of is more"


def test_a_log_that_was_torn_loses_only_its_end(path, tmp_path):
    """Cut the write-ahead log at any byte: what is read is what some number of writes left."""
    records = SqliteRecords(path)
    after = [{}]
    for number in range(6):
        changes = {
            RecordKey("k", str(place)): f"{number}" * 50 for place in range(number, number + 3)
        }
        records.write(changes)
        after.append(after[-1] | changes)
    log = path.with_name("records.db-wal").read_bytes()
    seen = set()
    torn = tmp_path / "torn.db"
    for cut in [*range(0, len(log), 2003), len(log)]:
        shutil.copy(path, torn)
        tmp_path.joinpath("torn.db-wal").write_bytes(log[:cut])
        tmp_path.joinpath("torn.db-shm").unlink(missing_ok=True)
        seen.add(after.index(read(torn)))
    records.close()
    assert seen == set(range(len(after)))


def test_a_write_that_fails_changes_nothing(path):
    """One line, and the record as it was."""
    records = SqliteRecords(path)
    records.write({KEYS[0]: "old"})
    with sqlite3.connect(path) as other:
        other.execute(
            "CREATE TRIGGER no BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    other.close()
    with pytest.raises(NotReady, match="cannot be written: full"):
        records.write({KEYS[0]: None, KEYS[1]: "new"})
    assert records.load() == {KEYS[0]: "old"}
    records.close()


def test_a_newer_record_is_not_touched(path):
    """One line that says what to do."""
    SqliteRecords(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotReady, match="newer version of Luthier") as raised:
        SqliteRecords(path)
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before


def test_a_file_that_is_no_record_is_told(path):
    """Another file under the name; a folder that cannot be."""
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(NotReady, match="not a database; move it away"):
        SqliteRecords(path)
    with pytest.raises(NotReady, match=r"server\.state_dir .*: "):
        lock_folder(str(path / "below")).__enter__()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_its_users_alone(tmp_path):
    """What is in it is run at the next start, and names users and paths; so it is with one of before."""
    (tmp_path / "before").mkdir()
    (tmp_path / "before").chmod(0o755)
    before = os.umask(0o022)
    try:
        for name in ("new", "before"):
            with lock_folder(str(tmp_path / name)) as folder:
                SqliteRecords(folder / "records.db").close()
            assert mode(tmp_path / name) == 0o700
            assert {mode(file) for file in (tmp_path / name).iterdir()} == {0o600}
    finally:
        os.umask(before)


@pytest.mark.parametrize("change", ["written", "owned"])
def test_a_folder_that_others_could_have_filled_is_refused(tmp_path, change):
    """Its cards are code, and would be run as this user."""
    folder = tmp_path / "state"
    folder.mkdir()
    if change == "written":
        folder.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root gives files away")
    else:
        os.chown(folder, 65534, 65534)
    with pytest.raises(
        NotReady, match=r"server\.state_dir .*belongs to user .*name another"
    ) as caught:
        lock_folder(str(folder)).__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("bits", "is_safe"), [(0o777, False), (0o707, False), (0o1777, True)])
def test_a_folder_below_one_that_others_may_write_is_refused(tmp_path, bits, is_safe):
    """They could put another one in its place, but where nobody touches what is another's, as in /tmp."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(bits)
    if is_safe:
        with lock_folder(str(above / "new" / "state")) as folder:
            assert mode(folder) == mode(folder.parent) == 0o700
        return
    with pytest.raises(NotReady, match=f"{above} belongs to user .*name another") as caught:
        lock_folder(str(above / "state")).__enter__()
    assert "\n" not in str(caught.value)


class LossyRecord:
    """A record that loses its last revisions when told to, and may be written between two calls."""

    def __init__(self):
        self.revisions = [Revision(RevisionId(0), {})]
        self.written = 0

    def snapshot(self):
        return self.revisions[-1]

    def write(self, changes, revision=None, above=0):
        base = self.revisions[-1]
        if revision not in (None, base.id):
            raise StaleRevision(base.id.number)
        self.written += 1
        id_ = RevisionId(max(base.id.number, above) + 1, str(self.written))
        self.revisions.append(Revision(id_, changed(base.rows, changes)))
        return id_


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("write", "write", "look", "lose")),
        st.permutations(range(3)),
        st.sampled_from(KEYS),
        st.booleans(),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_nothing_is_undone_by_a_record_that_loses_its_end(steps):
    """If all who know it look before the next change, in whatever order: then all know the same."""
    record = LossyRecord()
    known = [record.snapshot()] * 3
    expected = {}
    for number, (what, order, key, is_deleted) in enumerate(steps):
        first = order[0]
        if what == "lose":
            del record.revisions[1 + number % len(record.revisions) :]
        for one in order if what == "lose" else [first]:
            found = newest(record, known[one])
            assert found.id == known[one].id or found.id.number > known[one].id.number
            known[one] = found
        if what == "write":
            change = {key: None if is_deleted else str(number)}
            expected = changed(expected, change)
            rows = changed(known[first].rows, change)
            known[first] = Revision(record.write(change, known[first].id), rows)
    for one in (0, 1, 2) * 2:
        known[one] = newest(record, known[one])
    assert known[0].rows == expected
    assert known == [record.snapshot()] * 3
