"""What a killed server left is found again; a file that tells nothing is no hindrance."""

import pathlib

import pytest

from serving.state.nests import Nests


def test_what_was_noted_last_is_found(tmp_path):
    """By kind, by the next one and the one after; what is no more is forgotten."""
    nests = Nests(tmp_path)
    assert nests.taken() == {}
    nests.note("onnx", tmp_path / "a")
    nests.note("python", tmp_path / "b")
    nests.note("onnx", tmp_path / "c")
    following = Nests(tmp_path)
    assert following.taken() == {"onnx": tmp_path / "c", "python": tmp_path / "b"}
    following.note("python", None)
    following.note("torch", tmp_path / "d")
    assert Nests(tmp_path).taken() == {"onnx": tmp_path / "c", "torch": tmp_path / "d"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"onnx": 1}', '"x"', "\0"])
def test_nonsense_is_nothing(tmp_path, text, caplog):
    """It is told in a line, and written anew."""
    Nests(tmp_path).note("onnx", tmp_path / "a")
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    nests = Nests(tmp_path)
    assert nests.taken() == {}
    assert caplog.text.count("no replicas can be taken over") == 1
    nests.note("onnx", tmp_path / "b")
    assert Nests(tmp_path).taken() == {"onnx": tmp_path / "b"}


def test_a_note_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    """There will be nothing to take over, which is told."""
    Nests(tmp_path / "none").note("onnx", pathlib.Path("/a"))
    assert "replicas will not be taken over" in caplog.text
