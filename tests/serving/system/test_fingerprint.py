"""What a model's files are known by: all that is loaded, and nothing else."""

import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.system import fingerprint
from serving.system.fingerprint import fingerprint_of
from tests.fakes.adding import adding


def test_the_same_content_is_the_same(tmp_path):
    """Whatever the file's name and time."""
    first = fingerprint_of("onnx", adding(tmp_path / "a.onnx", 1.0))
    second = fingerprint_of("onnx", adding(tmp_path / "b.onnx", 1.0))
    assert first.digest == second.digest
    assert first.stamps != second.stamps
    assert first.is_whole
    assert first.size == (tmp_path / "a.onnx").stat().st_size
    other = adding(tmp_path / "b.onnx", 2.0)
    was = (tmp_path / "a.onnx").stat()
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert fingerprint_of("onnx", other).digest != first.digest


@pytest.mark.parametrize("name", ["weights.bin", "m.onnx.data", "w" * 200])
def test_weights_of_another_name_belong_to_a_model(tmp_path, name):
    """Not what else lies there, though its name begins with the model's, and though it leads nowhere."""
    file = adding(tmp_path / "m.onnx", 1.0, weights=name)
    first = fingerprint_of("onnx", file)
    assert sorted(first.stamps) == sorted([str(file), str(tmp_path / name)])
    assert not first.is_whole
    assert first.size == sum(one.stat().st_size for one in tmp_path.iterdir())
    (tmp_path / "m.onnx.old").symlink_to("/nowhere/at/all")
    (tmp_path / "m.onnx.bak").touch()
    assert fingerprint_of("onnx", file) == first
    assert first.still_holds()
    adding(tmp_path / "m.onnx", 2.0, weights=name)
    assert not first.still_holds()
    assert fingerprint_of("onnx", file).digest != first.digest
    (tmp_path / name).unlink()
    assert fingerprint_of("onnx", file).is_whole  # nobody can load it


@given(before=st.integers(0, 40), block=st.integers(1, 60))
def test_a_name_is_found_wherever_it_stands(tmp_path_factory, before, block):
    """Also across two blocks."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "w.bin").touch()
    file = folder / "m.onnx"
    file.write_bytes(b"x" * before + b"\n\x08location\x12\x05w.bin" + b"y" * before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "_BLOCK_BYTES", block)
        assert not fingerprint_of("onnx", file).is_whole
        assert fingerprint_of("sklearn", file).is_whole


@pytest.mark.parametrize("path", ["serving.models.echo:Model", "/none/at/all", "/tmp", "/", ""])
def test_what_is_no_single_file_has_no_identity(path):
    """So nobody can say that it is the same as before."""
    assert fingerprint_of("python", pathlib.Path(path)) is None
    assert fingerprint_of("python", None) is None
