"""Triton's configuration, read as Triton reads it: through its own message."""

import dataclasses

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serving.values import Signature, TensorSpec
from tests.tuner.export.conftest import RESNET, STUDY, of_model, own_model, texts_of, with_best
from tuner import export
from tuner.errors import UsageError
from tuner.export import triton


def config(study=STUDY, card=RESNET):
    """The parsed configuration; unknown fields are errors."""
    text = texts_of("triton", study, card)[f"{card.name}/config.pbtxt"]
    return text_format.Parse(text, ModelConfig())


def signed(*shapes, datatype="FP32", study=STUDY, output=(-1,)):
    """The study of a model with inputs of these shapes."""
    inputs = tuple(
        TensorSpec(name=f"x{index}", datatype=datatype, shape=shape)
        for index, shape in enumerate(shapes)
    )
    outputs = (TensorSpec(name="y", datatype="FP32", shape=output),)
    return dataclasses.replace(study, signature=Signature(inputs=inputs, outputs=outputs))


def test_the_knobs_stand_where_triton_reads_them():
    """Batches, instances, threads, cache; dimensions are those of an item."""
    best = {"replica__count": 3, "replica__threads": 2, "cache__capacity_mb": 16}
    found = config(with_best(batching__max_size=16, batching__timeout_us=300, **best))
    assert (found.name, found.platform, found.max_batch_size) == ("resnet", "onnxruntime_onnx", 16)
    assert found.dynamic_batching.max_queue_delay_microseconds == 300
    (group,) = found.instance_group
    assert (group.count, group.kind) == (3, ModelInstanceGroup.KIND_CPU)
    assert found.parameters["intra_op_thread_count"].string_value == "2"
    assert found.response_cache.enable
    assert list(found.input[0].dims) == [3, 32, 32]
    assert list(found.version_policy.specific.versions) == [1]


def test_a_configuration_for_a_gpu_has_its_instances_there():
    """On the first one, as our replicas."""
    (group,) = config(with_best(accelerator__clock_mhz=1410)).instance_group
    assert (group.kind, list(group.gpus)) == (ModelInstanceGroup.KIND_GPU, [0])


def test_the_model_is_copied_into_its_version():
    """The repository can be served as it is."""
    files = export.export(STUDY, "triton", card=RESNET)
    assert files["resnet/1/model.onnx"] == RESNET.path


def test_the_variant_that_was_chosen_is_the_one_that_is_copied():
    """So it is carried over, and not among what is left out."""
    study = with_best(model__variant="resnet8")
    files = export.export(study, "triton", card=RESNET)
    assert files["resnet/1/model.onnx"] == RESNET.variants["resnet8"].path
    assert "model.variant" not in files["resnet/config.pbtxt"]


def test_single_items_are_not_batched():
    """There is no batcher, and it is said that its delay is left out."""
    study = with_best(batching__max_size=1)
    assert not config(study).HasField("dynamic_batching")
    assert config(study).max_batch_size == 1
    text = texts_of("triton", study)["resnet/config.pbtxt"]
    assert "batching.timeout_us: 1000 (no batches are made of single items)" in text


def test_a_model_without_an_item_axis_has_whole_shapes():
    """Triton adds no dimension of its own."""
    found = config(signed((1, 3), output=(1, 2)))
    assert found.max_batch_size == 0
    assert list(found.input[0].dims) == [1, 3]


def test_one_number_per_item_is_reshaped():
    """Triton has no empty dimensions; texts have a name of their own."""
    study = signed((-1,), (-1, -1), datatype="BYTES")
    found = config(study)
    assert list(found.input[0].dims) == [1]
    assert found.input[0].HasField("reshape")
    assert list(found.input[1].dims) == [-1]
    assert [i.data_type for i in found.input] == [13, 13], "TYPE_STRING"
    text = texts_of("triton", study)["resnet/config.pbtxt"]
    assert "Of shape [n, 1] instead of [n] in Triton: x0, y." in text


def test_other_kinds_run_in_the_python_backend(tmp_path):
    """With the model's place and its threads as parameters of one program."""
    file = tmp_path / "net.pt2"
    card = own_model(file, kind="torch")
    study = of_model(card, str(file))
    found = config(study, card)
    assert (found.backend, found.platform) == ("python", "")
    assert found.parameters["model"].string_value == str(file)
    files = texts_of("triton", study, card)
    assert "class TritonPythonModel" in files["mine/1/model.py"]
    assert "needs the package luthier[torch]" in files["mine/config.pbtxt"]


def test_without_a_signature_an_onnx_file_tells_it():
    """Triton completes the configuration; the python backend cannot."""
    study = dataclasses.replace(STUDY, signature=None)
    assert not config(study).input
    card = own_model("mine.py:Mine", kind="python")
    with pytest.raises(UsageError, match="lacks the inputs and outputs"):
        texts_of("triton", of_model(card, "mine.py:Mine", study), card)


@given(text=st.text())
def test_any_name_survives_as_a_string(text):
    """Quotes, backslashes and what is not ASCII are escaped."""
    spec = TensorSpec(name=text, datatype="FP32", shape=(-1, 2))
    signature = Signature(inputs=(spec,), outputs=(spec,))
    try:
        expected = text.encode().decode()
    except UnicodeEncodeError:
        return  # half a surrogate pair, which no name has
    assert config(dataclasses.replace(STUDY, signature=signature)).input[0].name == expected


def test_quoted_is_plain_ascii():
    """So that no editor and no locale changes it."""
    assert triton.quote('ü"\n') == '"\\303\\274\\042\\012"'
