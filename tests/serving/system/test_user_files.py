"""Files that a user names: what is none is refused at once, in one line, wherever it is named."""

import os
import pathlib

import pytest

from serving import zoo
from serving.api import credentials
from serving.api.credentials import Tls
from serving.errors import InvalidSettings, ModelLoadFailed, ServingError
from serving.settings import sources
from serving.settings.server import ServerSettings
from serving.system import bounded_yaml, user_files


@pytest.fixture(params=["FIFO", "device", "link to a device"])
def special(request, tmp_path):
    """What has no end, or waits for a writer."""
    path = tmp_path / "file"
    if request.param == "FIFO":
        os.mkfifo(path)
    elif request.param == "device":
        return pathlib.Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    return path


def test_what_is_no_regular_file_is_refused(special):
    """Also without a writer, and without reading any of it."""
    for read in (user_files.open_file, user_files.read, user_files.text):
        with pytest.raises(OSError, match="not a regular file") as caught:
            read(special)
        assert caught.value.strerror == "not a regular file"


def test_a_folder_is_named_as_one(tmp_path):
    """As the system does."""
    with pytest.raises(IsADirectoryError):
        user_files.read(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_file_is_read_whole(tmp_path, size):
    """Up to the limit, also by a link."""
    file = tmp_path / "file"
    file.write_bytes(b"a" * size)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert user_files.read(link, max_bytes=10) == b"a" * size


def test_a_file_above_the_limit_is_refused(tmp_path):
    """By its size, and by what is read where the kernel tells no size."""
    file = tmp_path / "file"
    file.write_bytes(b"a" * 11)
    for path in (file, pathlib.Path("/proc/self/maps")):
        with pytest.raises(OSError, match="larger than 10 bytes"):
            user_files.read(path, max_bytes=10)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        file.write_bytes(bytes(user_files.MAX_BYTES + 1))
        user_files.read(file)


def test_lines_of_a_text_end_in_one_way(tmp_path):
    """As files that are opened as text are read."""
    file = tmp_path / "file"
    file.write_bytes(b"a\r\nb\rc\n")
    assert user_files.text(file) == "a\nb\nc\n"
    with pytest.raises(UnicodeDecodeError):
        file.write_bytes(b"\xff")
        user_files.text(file)


READERS = {
    "settings": lambda path: sources.resolve(file=path, environment={}),
    "token": lambda path: credentials.token(ServerSettings(token_file=str(path)), {}),
    "admin token": lambda path: credentials.admin_token(
        ServerSettings(admin_token_file=str(path)), {}
    ),
    "certificate": lambda path: Tls(str(path), str(path)).context("http/1.1"),
    "model": lambda path: zoo.find(str(path)),
    "model of a kind": lambda path: zoo.find(str(path), kind="onnx"),
    "Python file": lambda path: zoo.find(f"{path}.py:Model"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_names_such_a_file_is_told_in_one_line(special, read):
    """In the words of what reads it, with the file."""
    if not str(special).startswith("/dev"):
        pathlib.Path(f"{special}.py").symlink_to(special)
    with pytest.raises((InvalidSettings, ModelLoadFailed)) as caught:
        read(special)
    assert isinstance(caught.value, ServingError)
    assert str(special) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_is_a_regular_file(tmp_path):
    """A folder whose `model.yaml` is a FIFO has none."""
    os.mkfifo(tmp_path / "model.yaml")
    with pytest.raises(ModelLoadFailed, match=r"no model\.yaml"):
        zoo.find(str(tmp_path))
    with pytest.raises(OSError, match="not a regular file"):
        bounded_yaml.read(tmp_path / "model.yaml")
