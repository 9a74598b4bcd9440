"""Kind torch: TorchScript and exported programs through the real host, and what is refused."""

import io
import json
import pickle
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
import yaml

from serving import zoo
from serving.errors import InvalidRequest, ModelLoadFailed
from serving.values import TensorSpec
from serving.wire import ActionStatus
from tests.frameworks.conftest import frame, import_torch

torch = import_torch()

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of TorchScript as a whole
]
WEIGHTS = np.arange(8, dtype=np.float32).reshape(2, 4)
X = np.arange(12, dtype=np.float32).reshape(3, 4)
LINEAR = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS.copy()))

    def forward(self, x):
        return x @ self.weights.T


class Two(torch.nn.Module):
    """Whether the first item is negative decides what goes wrong."""

    def forward(self, x, count):
        if bool((count == -1).any()):
            raise ValueError("minus one is not liked")
        if bool((count == -2).any()):
            return torch.zeros([10000000, 10000000]), count
        if bool((count == -3).any()):
            return x[1:], count
        if bool((count == -4).any()):
            return x.double(), count
        return x * 2, count + 1


def spec(name, datatype, *shape):
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def load(path, threads=1):
    from serving.models.torch import Model  # noqa: PLC0415 - imports PyTorch

    return Model(path, threads=threads)


def export(module, arguments, path, dynamic=None, **extra):
    torch.export.save(
        torch.export.export(module, arguments, dynamic_shapes=dynamic), path, extra_files=extra
    )
    return path


FREE = {"x": {0: torch.export.Dim.DYNAMIC}}


@pytest.fixture(scope="module", name="models")
def _models(tmp_path_factory):
    """Files of the same linear model, by form."""
    folder = tmp_path_factory.mktemp("torch")
    scripted = torch.jit.script(Linear().eval())
    text = yaml.safe_dump(LINEAR)
    torch.jit.save(scripted, folder / "inside.pt", _extra_files={"signature.yaml": text})
    torch.jit.save(scripted, folder / "bare.pt")
    shutil.copy(folder / "bare.pt", folder / "beside.pt")
    (folder / "beside.signature.yaml").write_text(text)
    torch.jit.save(torch.jit.trace(Linear().eval(), torch.zeros(1, 4)), folder / "traced.pt")
    export(Linear().eval(), (torch.zeros(2, 4),), folder / "program.pt2", FREE)
    return folder


@pytest.mark.parametrize(
    ("file", "output", "platform"),
    [
        ("inside.pt", "y", "pytorch_torchscript"),
        ("beside.pt", "y", "pytorch_torchscript"),
        ("traced.pt", "output", "pytorch_torchscript"),
        ("program.pt2", "matmul", "pytorch_export"),
    ],
)
def test_every_form_is_served_with_its_signature(models, talk, file, output, platform):
    """A host loads it, tells its signature, and answers each request of a batch with its own items."""
    loaded = talk.load("torch", models / file)
    assert loaded.status == 0, loaded.detail
    assert loaded.detail["signature"] == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": output, "datatype": "FP32", "shape": [-1, 2]}],
        "platform": platform,
        "parameters": {"unbatched": ""},  # it is batched
    }
    message, outcomes = talk.infer([frame(("x", "FP32", X[:1])), frame(("x", "FP32", X[1:]))])
    assert message.status == 0, outcomes
    answers = [np.frombuffer(tensors[0].data, "<f4").reshape(-1, 2) for tensors in outcomes]
    np.testing.assert_allclose(answers[0], X[:1] @ WEIGHTS.T)
    np.testing.assert_allclose(answers[1], X[1:] @ WEIGHTS.T)


@pytest.mark.parametrize("file", ["inside.pt", "program.pt2"])
def test_threads_are_those_asked_for(models, file):
    """An operator may use as many threads as the replica is given."""
    for threads in (2, 1):
        load(models / file, threads=threads)
        assert torch.get_num_threads() == threads


def test_a_program_of_several_tensors_has_their_names(tmp_path):
    """Inputs by the names of the arguments, also a keyword's; a dictionary's outputs by its keys."""

    class Named(torch.nn.Module):
        def forward(self, a, *, b):
            return {"sum": a + b, "above": a > b}

    free = {"a": FREE["x"], "b": FREE["x"]}
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)  # one object would be one input
    program = torch.export.export(Named(), (a,), {"b": b}, dynamic_shapes=free)
    torch.export.save(program, tmp_path / "named.pt2")
    model = load(tmp_path / "named.pt2")
    assert model.signature.inputs == (spec("a", "FP32", -1, 3), spec("b", "FP32", -1, 3))
    assert model.signature.outputs == (spec("sum", "FP32", -1, 3), spec("above", "BOOL", -1, 3))
    ones = np.ones((1, 3), np.float32)
    answer = model.predict_batch({"b": 3 * ones, "a": ones})
    assert answer["sum"].tolist() == [[4, 4, 4]]
    assert answer["above"].tolist() == [[False] * 3]


def test_a_program_may_be_given_other_names(tmp_path):
    """A signature inside the archive wins over the program's own; it must have as many tensors."""
    arguments = (torch.zeros(2, 4),)
    text = yaml.safe_dump(LINEAR)
    path = export(Linear(), arguments, tmp_path / "y.pt2", FREE, **{"signature.yaml": text})
    assert load(path).signature.outputs == (spec("y", "FP32", -1, 2),)
    text = json.dumps(LINEAR | {"outputs": LINEAR["outputs"] * 2})
    path = export(Linear(), arguments, tmp_path / "z.pt2", FREE, **{"signature.yaml": text})
    with pytest.raises(ModelLoadFailed, match="declares 2 outputs, the program has 1: matmul"):
        load(path)


def test_a_fixed_first_dimension_is_refused_with_what_to_do(tmp_path):
    """A program that was exported for one size takes no batches."""
    path = export(Linear(), (torch.zeros(2, 4),), tmp_path / "fixed.pt2")
    with pytest.raises(ModelLoadFailed, match=r"\[2, 4\].*dynamic_shapes=\{'x': \{0: torch"):
        load(path)


# What a model does wrong


@pytest.fixture(scope="module", name="two")
def _two(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch") / "two.pt"
    signature = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 1]},
            {"name": "count", "datatype": "INT64", "shape": [-1, 1]},
        ],
        "outputs": [
            {"name": "twice", "datatype": "FP32", "shape": [-1, 1]},
            {"name": "next", "datatype": "INT64", "shape": [-1, 1]},
        ],
    }
    torch.jit.save(torch.jit.script(Two()), path)
    path.with_suffix(".signature.yaml").write_text(yaml.safe_dump(signature))
    return path


def request(count):
    x, counts = np.ones((1, 1), np.float32), np.full((1, 1), count, np.int64)
    return frame(("x", "FP32", x), ("count", "INT64", counts))


@pytest.mark.parametrize(
    ("count", "status", "text"),
    [
        (-1, ActionStatus.MODEL_RAISED, "minus one is not liked"),
        (-2, ActionStatus.OUT_OF_MEMORY, "no memory for a batch of 1 items"),
        (-3, ActionStatus.BROKEN_CONTRACT, "for 1 items"),
        (-4, ActionStatus.BROKEN_CONTRACT, "FP64"),
    ],
)
def test_a_fault_stays_with_its_request(two, talk, count, status, text):
    """What the module raises or returns wrongly fails the request at fault, not its neighbour."""
    assert talk.load("torch", two).status == 0
    _, (answer, fault) = talk.infer([request(4), request(count)])
    types = ("<f4", "<i8")
    assert [np.frombuffer(t.data, d)[0] for t, d in zip(answer, types, strict=True)] == [2, 5]
    assert fault[0] == status
    assert text in fault[1]


@pytest.mark.parametrize("outputs", [1, 3])
def test_another_number_of_outputs_is_told(two, talk, tmp_path, outputs):
    """A module that returns other outputs than its signature has breaks its contract."""
    path = tmp_path / "wrong.pt"
    shutil.copy(two, path)
    signature = yaml.safe_load(two.with_suffix(".signature.yaml").read_text())
    signature["outputs"] = (signature["outputs"] * 2)[:outputs]
    path.with_suffix(".signature.yaml").write_text(json.dumps(signature))
    assert talk.load("torch", path).status == 0
    _, outcomes = talk.infer([request(1)])
    assert outcomes[0][0] == ActionStatus.BROKEN_CONTRACT
    assert f"returned 2 outputs, its signature has {outputs}" in outcomes[0][1]


# What is refused


def pickled(folder, **options):
    torch.save(Linear().state_dict(), folder / "state.pt", **options)
    return folder / "state.pt"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(pickled, "a state dict; pickles are refused", id="a state dict"),
        pytest.param(
            lambda folder: pickled(folder, _use_new_zipfile_serialization=False),
            "a pickle; pickles are refused",
            id="a state dict of old",
        ),
    ],
)
def test_pickles_are_refused_with_what_to_do(tmp_path, make, reason):
    with pytest.raises(ModelLoadFailed, match=f"{reason}.*torch.jit.save.*torch.export.save"):
        load(make(tmp_path))


def test_files_that_are_no_models_are_one_clear_line(models, tmp_path):
    """No file, another file, another archive, and half an archive."""
    other = tmp_path / "other.pt"
    for path in (None, tmp_path, tmp_path / "none.pt"):
        with pytest.raises(ModelLoadFailed, match="no such file"):
            load(path)
    other.write_text("hello")
    with pytest.raises(ModelLoadFailed, match="not a PyTorch archive"):
        load(other)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("hello", "hello")
    with pytest.raises(ModelLoadFailed, match="not one of PyTorch"):
        load(other)
    for file, part in (("inside.pt", "code/"), ("program.pt2", "models/model.json")):
        rewrite(models / file, other, lambda name, data, part=part: None if part in name else data)
        with pytest.raises(ModelLoadFailed, match="PyTorch 2") as caught:
            load(other)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("inputs: 3", "expected inputs and outputs", id="not lists"),
        pytest.param("- 3", "expected inputs and outputs", id="not a mapping"),
        pytest.param("inputs: [", "signature.yaml|while parsing", id="not YAML"),
        pytest.param("inputs: " + "[" * 100 + "]" * 100, "nested deeper", id="deep"),
        pytest.param("#" * 2**20 + "\n", "larger than", id="large"),
        pytest.param(
            yaml.safe_dump(LINEAR).replace("FP32", "BYTES"), "PyTorch does not have", id="texts"
        ),
        pytest.param(
            json.dumps(LINEAR | {"inputs": LINEAR["inputs"] * 2}),
            "declares 2 inputs, the module takes 1: x",
            id="too many inputs",
        ),
    ],
)
def test_a_signature_that_does_not_fit_is_one_clear_line(models, tmp_path, text, reason):
    shutil.copy(models / "bare.pt", tmp_path / "net.pt")
    (tmp_path / "net.signature.yaml").write_text(text)
    with pytest.raises(ModelLoadFailed, match=reason) as caught:
        load(tmp_path / "net.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            "inputs: " + "[" * 100 + "]" * 100, "signature.yaml: nested deeper", id="deep"
        ),
        pytest.param("#" * 2**20 + "\n", "signature.yaml: larger than", id="large"),
        pytest.param("inputs: &a [*a]", "signature.yaml: anchors", id="aliases"),
    ],
)
def test_a_signature_in_an_archive_is_bounded(tmp_path, text, reason):
    """As one beside it is: an archive may hold anything."""
    scripted = torch.jit.script(Linear())
    torch.jit.save(scripted, tmp_path / "net.pt", _extra_files={"signature.yaml": text})
    export(Linear(), (torch.zeros(2, 4),), tmp_path / "net.pt2", FREE, **{"signature.yaml": text})
    for name in ("net.pt", "net.pt2"):
        with pytest.raises(ModelLoadFailed, match=reason):
            load(tmp_path / name)


class Numbers(torch.nn.Module):
    def forward(self, x, power: int, factor: float, negative: bool = False):
        y = factor * x**power
        return (-y if negative else y), x


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".jit", ".bin"])
def test_the_command_that_is_offered_makes_a_scripted_module_load(tmp_path, suffix):
    """What the error names after a colon is run as it is; numbers of `forward` are numbers."""
    path = tmp_path / f"a net{suffix}"
    torch.jit.save(torch.jit.script(Numbers()), str(path))
    assert zoo.find(str(path)).kind == "torch"
    with pytest.raises(ModelLoadFailed, match="does not store its datatypes and shapes") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    command = str(caught.value).partition("(-1: free): ")[2].rpartition(" (PyTorch")[0]
    subprocess.run(command, shell=True, check=True)
    model = load(path)
    assert model.signature.inputs == (
        spec("x", "FP32", -1, -1),
        spec("power", "INT64"),
        spec("factor", "FP64"),
    )
    assert [output.name for output in model.signature.outputs] == ["output_0", "output_1"]
    assert path.with_suffix(".signature.yaml") in zoo.find(str(path)).files
    given = {"x": X, "power": np.array(2), "factor": np.array(0.5)}
    np.testing.assert_allclose(model.predict_batch(given)["output_0"], 0.5 * X**2)
    with pytest.raises(InvalidRequest, match=r"'power': the model takes one number, given shape"):
        model.predict_batch(given | {"power": np.array([2, 3])})


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def rewrite(source, target, change):
    """A copy of an archive with other contents; None leaves a part out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            data = change(item.filename, old.read(item))
            if data is not None:
                new.writestr(item.filename, data)


def test_no_pickle_inside_an_exported_program_is_run(models, tmp_path):
    """A program whose parts were made to run code is refused, or loads without running it."""
    trace = tmp_path / "trace"
    bomb = io.BytesIO()
    torch.save(Bomb(trace), bomb)
    target = tmp_path / "bomb.pt2"

    def in_sample(name, data):
        return bomb.getvalue() if "sample_inputs" in name else data

    rewrite(models / "program.pt2", target, in_sample)
    with pytest.raises(ModelLoadFailed, match=r"[Uu]npickl|[Ww]eights"):
        load(target)
    assert not trace.exists()

    rewrite(models / "program.pt2", target, lambda _, data: data)
    with zipfile.ZipFile(target, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/constants/opaque_obj_0", pickle.dumps(Bomb(trace)))
    with pytest.raises(ModelLoadFailed, match="opaque_obj_0, which is pickled or native code"):
        load(target)
    assert not trace.exists()
