"""Kind onnx, on the shipped resnet and on small graphs that are made here byte by byte."""

from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import __version__, models, zoo
from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models import onnx, onnx_copies, onnx_session
from serving.system import machine
from serving.system.fingerprint import fingerprint_of
from serving.zoo import bundled
from tests.fakes.adding import adding, of_three

FLOAT32, UINT8, INT64, STRING, BOOL, FLOAT16, BFLOAT16 = 1, 2, 7, 8, 9, 10, 16
"""Numbers of ONNX element types (onnx.proto, TensorProto.DataType)."""


def field(number: int, payload: bytes | str | int) -> bytes:
    """A protobuf field: a varint below 128, or bytes shorter than 16,384."""
    if isinstance(payload, int):
        return bytes([number << 3, payload])
    data = payload.encode() if isinstance(payload, str) else payload
    size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def tensor(name: str, element: int, shape: list[int | str]) -> bytes:
    """A ValueInfoProto: a dimension is a number or a name."""
    dims = b"".join(field(1, field(2 if isinstance(d, str) else 1, d)) for d in shape)
    return field(1, name) + field(2, field(1, field(1, element) + field(2, dims)))


def identity(element: int, shape: list[int | str]) -> bytes:
    """A model with the one node `out = Identity(in)`, opset 17, so that the tests need no onnx package."""
    node = field(1, "in") + field(2, "out") + field(4, "Identity")
    graph = field(1, node) + field(2, "g") + field(11, tensor("in", element, shape))
    graph += field(12, tensor("out", element, shape))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 17))


@pytest.fixture(scope="module")
def resnet():
    return onnx.Model(zoo.find("resnet").path, threads=1)


@pytest.fixture
def load(tmp_path):
    def load_bytes(data: bytes) -> onnx.Model:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        return onnx.Model(path, threads=1)

    return load_bytes


@pytest.mark.parametrize(
    ("element", "datatype", "array"),
    [
        pytest.param(UINT8, "UINT8", np.array([[1], [2]], np.uint8), id="bytes"),
        pytest.param(INT64, "INT64", np.array([[1], [-2]], np.int64), id="integers"),
        pytest.param(BOOL, "BOOL", np.array([[True], [False]]), id="booleans"),
        pytest.param(FLOAT16, "FP16", np.array([[1.5], [-2]], np.float16), id="half precision"),
        pytest.param(STRING, "BYTES", np.array([["a"], ["é"]], object), id="text"),
    ],
)
def test_datatypes_are_the_protocols_and_values_pass(load, element, datatype, array):
    model = load(identity(element, ["n", 1]))
    assert model.signature.inputs[0].as_json() == {
        "name": "in",
        "datatype": datatype,
        "shape": [-1, 1],
        "parameters": {"dimensions": ["n", ""]},
    }
    assert model.signature.platform == "onnxruntime_onnx"
    answer = model.predict_batch({"in": array})["out"]
    assert answer.dtype == array.dtype
    np.testing.assert_array_equal(answer, array)


def test_text_may_come_as_bytes(load):
    model = load(identity(STRING, ["n", 2]))
    given_texts = np.array([[b"a", "é".encode()], [b"", b"b"]], object)
    answer = model.predict_batch({"in": given_texts})["out"]
    assert answer.tolist() == [["a", "é"], ["", "b"]]


@pytest.mark.parametrize(
    ("shape", "reported"),
    [
        pytest.param(["batch", 3], (-1, 3), id="named dimension"),
        pytest.param([4, 3], (4, 3), id="fixed batch is reported as it is"),
        pytest.param(["a", "b", "c"], (-1, -1, -1), id="all free"),
        pytest.param([], (), id="scalar"),
    ],
)
def test_shapes_are_read_from_the_file(load, shape, reported):
    signature = load(identity(INT64, shape)).signature
    assert signature.inputs[0].shape == reported
    assert signature.outputs[0].shape == reported


def test_a_type_that_the_protocol_lacks_is_refused(load):
    with pytest.raises(ModelLoadFailed, match=r"'in' is of type tensor\(bfloat16\), expected one"):
        load(identity(BFLOAT16, ["n"]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"hello world" * 10, "not a readable ONNX file: Proto", id="not ONNX"),
        pytest.param(zoo.find("resnet").path.read_bytes()[:5000], "not a readable", id="cut off"),
        pytest.param(b"", r"No graph|does not have a graph", id="empty"),
        pytest.param(
            identity(STRING, [1]).replace(b"Identity", b"Nonsense"), "Nonsense", id="operator"
        ),
    ],
)
def test_a_broken_file_is_one_clear_line(load, tmp_path, data, reason):
    with pytest.raises(ModelLoadFailed, match=reason) as caught:
        load(data)
    assert str(tmp_path / "model.onnx") == caught.value.model
    assert "\n" not in str(caught.value)
    assert "ONNXRuntimeError" not in str(caught.value)
    assert "::" not in caught.value.text


@pytest.mark.parametrize("path", [None, pathlib.Path("/no/such.onnx"), pathlib.Path("/")])
def test_a_missing_file_is_refused(path):
    with pytest.raises(ModelLoadFailed, match="no such file"):
        onnx.Model(path, threads=1)


IMAGES = np.zeros((2, 3, 32, 32), np.uint8)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        pytest.param({}, "missing", id="no input"),
        pytest.param(
            {"image": IMAGES.astype(np.float32)}, r"expected: \(tensor\(uint8\)\)", id="dtype"
        ),
        pytest.param({"image": IMAGES[:, :, 1:]}, "Got: 31 Expected: 32", id="shape"),
        pytest.param({"image": IMAGES[0]}, "Got: 3 Expected: 4", id="rank"),
        pytest.param({"image": IMAGES, "more": IMAGES}, "more", id="unknown input"),
    ],
)
def test_an_input_that_does_not_fit_is_the_clients_fault_in_one_line(resnet, inputs, complaint):
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        resnet.predict_batch(inputs)
    assert "\n" not in str(caught.value)


def test_a_session_answers_after_a_refused_request(resnet):
    with pytest.raises(InvalidRequest):
        resnet.predict_batch({})
    assert resnet.predict_batch({"image": IMAGES})["scores"].shape == (2, 10)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_any_partition_into_batches_gives_the_same_scores_in_the_same_order(sizes, seed):
    model = onnx.Model(zoo.find("resnet").path, threads=1)
    images = np.random.default_rng(seed).integers(0, 256, (sum(sizes), 3, 32, 32), np.uint8)
    together = model.predict_batch({"image": images})["scores"]
    parts = [
        model.predict_batch({"image": part})["scores"]
        for part in np.split(images, np.cumsum(sizes)[:-1])
    ]
    np.testing.assert_allclose(np.concatenate(parts), together, atol=1e-5)


def test_the_number_of_threads_changes_no_answer(resnet):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    two_threads = onnx.Model(zoo.find("resnet").path, threads=2)
    np.testing.assert_allclose(
        two_threads.predict_batch({"image": images})["scores"],
        resnet.predict_batch({"image": images})["scores"],
        atol=1e-5,
    )


def test_options_keep_to_the_threads_and_do_not_spin():
    options = onnx_session.session_options(threads=3)
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


MEMORY = """
import numpy as np
from serving import zoo
from serving.models import onnx

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

model = onnx.Model(zoo.find("resnet").path, threads=1)
model.predict_batch({"image": np.zeros((32, 3, 32, 32), np.uint8)})
before = resident_mib()
for size in range(1, 33):
    model.predict_batch({"image": np.zeros((size, 3, 32, 32), np.uint8)})
print(resident_mib() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_batches_of_every_size_hold_no_more_memory_than_the_largest():
    root = pathlib.Path(models.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 4  # MiB; plans for every shape would take 8 and more
    assert not result.stderr  # the runtime says nothing


def bundled_files():
    """The ONNX files that the repository holds, but for parts of a model in Python."""
    return sorted(bundled.FOLDER.glob("*/model*.onnx"))


@pytest.fixture(name="copies")
def _copies(tmp_path, monkeypatch):
    """Where optimised copies are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luthier" / onnx_copies.COPIES


def told(path, **how):
    """A model whose content is told, as a replica's is."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return onnx.Model(path, threads=1, digest=digest, **how)


def added(model, items=8):
    """What a model of `adding` adds."""
    return model.predict_batch({"x": np.zeros((1, items), np.float32)})["y"][0, 0]


@pytest.mark.parametrize(
    "path", bundled_files(), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_an_optimised_copy_answers_as_its_file_does(path, copies):
    """Bit by bit, for any batch; it is written once, where that is asked for, and loaded from then on."""
    own = told(path)
    assert own.optimised is None
    assert list(copies.iterdir()) == []
    first = told(path, optimises=True)
    (folder,) = copies.iterdir()
    assert first.optimised == str(folder)
    made = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    quick = told(path, optimises=True)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == made
    assert [one.stat().st_mode & 0o777 for one in (copies, folder)] == [0o700] * 2
    assert told(path).optimised == quick.optimised == str(folder)
    assert onnx.Model(path, threads=1).optimised is None
    assert quick.signature == own.signature
    rng = np.random.default_rng(1)
    for items in (1, 3):
        inputs = {
            spec.name: rng.integers(
                0, 5, [items, *(7 if size < 0 else size for size in spec.shape[1:])]
            ).astype(DTYPES[spec.datatype])
            for spec in own.signature.inputs
        }
        answers = own.predict_batch(inputs)
        for name, array in quick.predict_batch(inputs).items():
            assert array.tobytes() == answers[name].tobytes()


DTYPES = {"FP32": "f4", "UINT8": "u1", "INT64": "i8", "INT32": "i4", "BOOL": "?"}


def test_weights_of_an_optimised_copy_are_mapped(copies):
    """An embedding, which the runtime packs into no form of its own."""
    model = told(zoo.find("reviews").path, optimises=True)
    assert f"{model.optimised}/weights.bin" in pathlib.Path("/proc/self/maps").read_text()
    assert model.device == "cpu"


def test_an_optimised_copy_that_is_damaged_is_not_used(copies, caplog):
    """Its weights were cut short, its graph is nonsense, it is gone: the model's own file is loaded."""
    path = zoo.find("resnet").path
    shape = onnx.Model(path, threads=1).signature.inputs[0].shape[1:]
    folder = pathlib.Path(told(path, optimises=True).optimised)
    for damage in (
        lambda: (folder / "weights.bin").write_bytes(b"short"),
        lambda: (folder / "model.onnx").write_bytes(b"nonsense"),
        lambda: shutil.rmtree(folder),
    ):
        damage()
        caplog.clear()
        is_there = folder.is_dir()
        for _ in range(3):
            model = told(path)
            assert model.predict_batch({"image": np.zeros((1, *shape), "u1")})
            assert model.optimised is None
        assert len(caplog.records) == is_there
        assert not folder.exists()
        assert told(path, optimises=True).optimised == str(folder)
    (folder / "model.onnx").write_bytes(b"nonsense")
    assert told(path, optimises=True).optimised == str(folder), "it is replaced at once"


def test_another_model_is_not_taken_for_it(tmp_path, copies, monkeypatch):
    """Of the same path, inode, size and time; twins share a copy; other software and processors have their own."""
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    first = told(file, optimises=True).optimised
    twin = tmp_path / "twin.onnx"
    shutil.copy(file, twin)
    assert told(twin).optimised == first
    was = file.stat()
    adding(file, 2.0, items=8)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (file.stat().st_ino, file.stat().st_size) == (was.st_ino, was.st_size)
    assert told(file).optimised is None
    other = told(file, optimises=True)
    assert other.optimised not in {None, first}
    assert (added(other), added(told(twin))) == (2.0, 1.0)
    for fact in (onnxruntime.__version__, machine.cpu_digest(), __version__):
        assert fact in onnx_copies._FITS
    monkeypatch.setattr(onnx_copies, "_FITS", "others")
    assert told(twin).optimised is None


def test_no_copy_is_written_of_another_file(tmp_path, copies, caplog):
    """It was replaced after it was deployed: what was deployed then is not here any more."""
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    digest = fingerprint_of("onnx", file).digest
    adding(file, 2.0, items=8)
    model = onnx.Model(file, threads=1, digest=digest, optimises=True)
    assert (model.optimised, added(model)) == (None, 2.0)
    assert ["it has changed" in record.error for record in caplog.records] == [True]
    assert list(copies.iterdir()) == []


def test_no_copy_is_written_of_half_a_model(tmp_path, copies, caplog):
    """Its weights are in another file, of which the digest tells nothing."""
    file = adding(tmp_path / "m.onnx", 1.0, weights="w.bin", items=8)
    assert added(told(file, optimises=True)) == 1.0
    assert [record.message for record in caplog.records] == ["no optimised copy is written"]
    assert list(copies.iterdir()) == []


def test_two_replicas_that_write_at_once_have_one_copy(tmp_path, copies, monkeypatch, caplog):
    """Who comes second takes the first one's; nothing else is left."""
    file = adding(tmp_path / "m.onnx", 1.0, items=2**16)
    both, optimise = threading.Barrier(2, timeout=30), onnx_copies._optimise

    def together(*paths):
        both.wait()
        optimise(*paths)
        both.wait()

    monkeypatch.setattr(onnx_copies, "_optimise", together)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        models = list(threads.map(lambda _: told(file, optimises=True), range(2)))
    assert [model.optimised for model in models] == [str(one) for one in copies.iterdir()] * 2
    assert [added(model, 2**16) for model in models] == [1.0, 1.0]
    assert not caplog.records


def test_weights_of_a_copy_are_read_in_by_its_load(tmp_path, copies):
    """Rows of a table that no first call touches: no batch waits for a disk."""
    path = adding(tmp_path / "m.onnx", 1.0, items=2**20)
    weights = pathlib.Path(told(path, optimises=True).optimised, "weights.bin")
    before, after = [], []
    with weights.open("rb") as file:
        os.fsync(file.fileno())
        for _ in range(3):  # the kernel may take a page back at any time
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before.append(in_memory(file))
            model = told(path)
            assert model.optimised
            after.append(in_memory(file))
            del model
            if after[-1] == 1.0:
                break
    assert after[-1] == 1.0
    if before[0] > 0.5:
        pytest.skip("this file system keeps its files in memory")


def in_memory(file):
    """The share of a file's pages that is in memory: mincore(2)."""
    size = os.fstat(file.fileno()).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    at = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0))
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    try:
        assert libc.mincore(at, ctypes.c_size_t(size), pages) == 0
    finally:
        libc.munmap(at, ctypes.c_size_t(size))
    return sum(page & 1 for page in pages) / len(pages)


def test_what_no_copy_can_be_written_of_is_told(tmp_path, copies, monkeypatch, caplog):
    """The runtime does not know the file, there is no room, or no folder; nothing is left behind."""
    broken, file = tmp_path / "broken.onnx", adding(tmp_path / "m.onnx", 1.0, items=8)
    broken.write_bytes(b"hello world" * 10)
    with pytest.raises(ModelLoadFailed, match="not a readable ONNX file"):
        told(broken, optimises=True)
    monkeypatch.setattr(onnx_copies, "MOST_BYTES", 25)
    assert added(told(file, optimises=True)) == 1.0
    assert [record.message for record in caplog.records] == ["no optimised copy is written"] * 2
    assert "has less free space than 4 times" in caplog.records[-1].error
    assert list(copies.iterdir()) == []
    caplog.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    for _ in range(2):
        assert added(told(file, optimises=True)) == 1.0
    assert [record.message for record in caplog.records] == [
        "models are loaded from their original files"
    ]


@pytest.mark.parametrize("which", ["", "luthier", "luthier/optimised", "luthier/optimised/COPY"])
@pytest.mark.parametrize("made", ["open", "foreign"])
def test_nothing_is_used_that_others_may_have_written(tmp_path, copies, caplog, which, made):
    """Whichever folder on the way it is, and though the copy is there already."""
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    copy = pathlib.Path(told(file, optimises=True).optimised)
    assert told(file).optimised == str(copy)
    folder = copies.parents[1] / which.replace("COPY", copy.name)
    if made == "open":
        folder.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root gives files away")
    else:
        os.chown(folder, 65534, 65534)
    for optimises in (False, True):
        model = told(file, optimises=optimises)
        assert (model.optimised, added(model)) == (None, 1.0)
    (reason,) = [record.reason for record in caplog.records]  # it is told once
    assert f"{folder} belongs to user" in reason


def test_a_link_is_followed_to_where_it_leads(tmp_path, copies):
    """What is checked is what is used; a copy is never a link."""
    copies.parents[1].symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir(mode=0o700)
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    copy = pathlib.Path(told(file, optimises=True).optimised)
    assert copy.parent == tmp_path / "real" / "luthier" / "optimised"
    copy.rename(tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")
    assert told(file).optimised is None


def test_the_least_recently_loaded_go(tmp_path, copies, monkeypatch):
    """When one is written and all together take too much, or one is very old; what nobody has finished goes, too."""
    monkeypatch.setattr(onnx_copies, "MOST_BYTES", 1_000_000)
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    kept = pathlib.Path(told(file, optimises=True).optimised)
    now_s = time.time()
    for name, age_s, size in (
        (kept.name, 500, None),
        ("new", 300, 400_000),
        ("old", 400, 400_000),
        ("older", 450, 400_000),
        ("oldest", 31 * 86_400, 0),
        (".new-1", 10, 1),
        (".new-2", 9000, 1),
    ):
        folder = copies / name
        if size is not None:
            folder.mkdir(mode=0o700)
            (folder / "weights.bin").write_bytes(b"x" * size)
        os.utime(folder, (now_s - age_s, now_s - age_s))
    assert told(file).optimised == str(kept)  # which is a use
    other = told(adding(file, 2.0, items=8), optimises=True).optimised
    left = {kept.name, pathlib.Path(other).name, "new", "old", ".new-1"}
    assert {folder.name for folder in copies.iterdir()} == left


def test_a_run_that_fails_is_raised_and_not_printed(tmp_path, capfd):
    """Each request may bring it about; a log of JSON lines has no room for the runtime's own."""
    model = onnx.Model(of_three(tmp_path / "model.onnx"), threads=1)
    answer = model.predict_batch({"x": np.zeros((1, 3), np.float32)})
    assert answer["y"].tolist() == [[1.0, 1.0, 1.0]]
    with pytest.raises(Exception, match="Add"):
        model.predict_batch({"x": np.zeros((1, 5), np.float32)})
    assert capfd.readouterr().err == ""
