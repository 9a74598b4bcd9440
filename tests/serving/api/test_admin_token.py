"""The token that a server makes for its admin port: one file of its user's, gone with the server, found by the port."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import threading

import pytest

from serving.api import admin_token
from serving.errors import NotReady
from serving.system import process_identity

ROOT = pathlib.Path(__file__).parents[3]
PORT = 8002
MAKER = """
import sys
from serving.api import admin_token
with admin_token.generate(int(sys.argv[1])) as made:
    print(made.text, made.file, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(name="base")
def _base(tmp_path, monkeypatch):
    """The runtime directory of this test's user; that of temporary files, which is searched too, is empty."""
    for name in ("runtime", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "runtime"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def another(port):
    """Another process that keeps a token, with what it says of it."""
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    text, file = maker.stdout.readline().split()
    return maker, text, pathlib.Path(file)


def test_only_its_user_reads_it(base):
    """In a folder of its own, whatever the umask; each time another one; nothing is left."""
    before = os.umask(0)
    try:
        with admin_token.generate(PORT) as made, admin_token.generate(PORT + 1) as other:
            assert made.file.parent.parent == other.file.parent.parent == base
            assert (mode(made.file), mode(made.file.parent)) == (0o600, 0o700)
            assert made.file.read_text().strip() == made.text
            assert made.text != other.text
            assert len(made.text) >= 32
            assert admin_token.of_port(PORT) == made.text
            assert admin_token.of_port(PORT + 1) == other.text
            assert admin_token.of_port(PORT + 2) is None
    finally:
        os.umask(before)
    assert not list(base.iterdir())
    assert admin_token.of_port(PORT) is None


def test_what_a_killed_server_left_is_removed_by_the_next(base):
    """It is found by nobody; that of a server that runs stays."""
    runs, text, kept = another(PORT + 1)
    killed, _, left = another(PORT)
    with runs, killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait(20)
        assert left.exists()
        assert admin_token.of_port(PORT) is None
        with admin_token.generate(PORT) as made:
            assert not left.parent.exists()
            assert kept.exists()
            assert admin_token.of_port(PORT) == made.text
            assert admin_token.of_port(PORT + 1) == text
        runs.stdin.close()
        assert runs.wait(20) == 0
    assert not list(base.iterdir())


def test_without_a_runtime_directory_it_is_among_the_temporary_files(tmp_path, monkeypatch):
    """So it is where the directory is not there, or another user's, as after `su`; clients look in both places."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    foreign = "/proc/1" if os.geteuid() else str(tmp_path / "foreign")
    if not os.geteuid():
        (tmp_path / "foreign").mkdir()
        os.chown(tmp_path / "foreign", 65534, 65534)
    for environment in ({}, {"XDG_RUNTIME_DIR": "/nowhere"}, {"XDG_RUNTIME_DIR": foreign}):
        with admin_token.generate(PORT, environment) as made:
            assert made.file.parent.parent == tmp_path / "temporary"
            assert admin_token.of_port(PORT, {"XDG_RUNTIME_DIR": str(tmp_path)}) == made.text


def test_no_file_of_anybody_else_is_taken_or_removed(base):
    """A link into another folder, a folder of another user, a name without an owner."""
    gone = process_identity.ProcessIdentity(
        pid=2**22 - 1, started_ticks=1, namespace=process_identity.this_process().namespace
    )
    with admin_token.generate(PORT) as made:
        for maker in (gone, process_identity.this_process()):
            (base / maker.new_name()).symlink_to(made.file.parent)
        (base / "luthier-nobodys").mkdir()
        (base / "luthier-nobodys" / f"admin-{PORT + 1}.token").write_text("planted")
        if not os.geteuid():
            theirs = base / process_identity.this_process().new_name()
            theirs.mkdir()
            (theirs / f"admin-{PORT + 1}.token").write_text("planted")
            os.chown(theirs, 65534, 65534)
        assert admin_token.of_port(PORT + 1) is None
        with admin_token.generate(PORT + 2):
            assert made.file.exists()
            assert admin_token.of_port(PORT) == made.text


def test_where_it_cannot_be_kept_the_start_says_what_to_do(tmp_path, monkeypatch):
    """In one line."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with (
        pytest.raises(NotReady, match="--no-admin-token") as caught,
        admin_token.generate(PORT, {}),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert "No such file or directory" in str(caught.value)


def test_a_cleaning_removes_what_is_left(base):
    """`tune doctor --clean` says which; what is in use stays."""
    killed, _, left = another(PORT)
    with killed:
        killed.kill()
        killed.wait(20)
        with admin_token.generate(PORT + 1) as made:
            left.parent.mkdir(exist_ok=True)
            left.touch()
            assert admin_token.remove_left() == [left]
            assert admin_token.remove_left() == []
            assert made.file.exists()


def test_servers_that_end_meanwhile_disturb_no_search(base):
    """Their folders disappear between the steps of the search."""
    ended = threading.Event()

    def others():
        while not ended.is_set():
            folder = base / process_identity.this_process().new_name()
            folder.mkdir()
            folder.rmdir()

    with admin_token.generate(PORT) as made:
        thread = threading.Thread(target=others)
        thread.start()
        try:
            for _ in range(1000):
                assert admin_token.remove_left() == []
                assert admin_token.of_port(PORT) == made.text
        finally:
            ended.set()
            thread.join()
