"""TensorFlow Serving and Ray Serve: what stands in their files."""

import dataclasses
import subprocess

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS

from tests.tuner.export.conftest import of_model, own_model, texts_of, with_best

STUDY = with_best(
    replica__count=2,
    replica__cpu=0.5,
    replica__threads=2,
    batching__max_size=16,
    batching__timeout_us=300,
)


def batching_parameters():
    """The message, by the fields in tensorflow/serving's session_bundle_config.proto: its package leaves it out."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(WRAPPERS.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="session_bundle_config.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=[WRAPPERS.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    names = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads")
    for number, name in enumerate(names, 1):
        message.field.add(
            name=name, number=number, type=11, label=1, type_name=".google.protobuf.Int64Value"
        )
    pool.Add(file)
    found = pool.FindMessageTypeByName("tensorflow.serving.BatchingParameters")
    return message_factory.GetMessageClass(found)()


def test_batches_and_threads_of_tensorflow_serving():
    """A batch thread is a replica; the queue is counted in batches."""
    text = texts_of("tfserving", STUDY)["batching.pbtxt"]
    found = text_format.Parse(text, batching_parameters())
    assert found.max_batch_size.value == 16
    assert found.batch_timeout_micros.value == 300
    assert found.num_batch_threads.value == 2
    assert found.max_enqueued_batches.value == 2048 / 16


@pytest.mark.parametrize("name", ["mine", "$(touch oops)'\"; `id`"])
def test_the_script_runs_one_command(name, tmp_path):
    """The folder that it is given, the limits and the flags reach docker as words."""
    card = own_model(tmp_path / "scaled", kind="tensorflow")
    study = of_model(card, str(tmp_path / "scaled"), STUDY)
    for file, text in texts_of("tfserving", study, card).items():
        (tmp_path / file).write_text(text)
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    model = tmp_path / f"a {name.replace('/', '')}"
    model.mkdir()
    done = subprocess.run(
        ["sh", str(tmp_path / "serve.sh"), str(model)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        cwd=tmp_path,
    )
    words = done.stdout.splitlines()
    assert words[:3] == ["run", "--rm", "--cpus"]
    assert f"{model}:/models/mine/1:ro" in words
    assert f"{tmp_path}/batching.pbtxt:/batching.pbtxt:ro" in words
    assert "--enable_batching" in words
    assert "--tensorflow_intra_op_parallelism=4" in words
    assert not (tmp_path / "oops").exists()


def test_without_a_folder_the_script_says_what_it_needs(tmp_path):
    """And nothing is run."""
    (tmp_path / "serve.sh").write_text(texts_of("tfserving", STUDY)["serve.sh"])
    command = ["sh", str(tmp_path / "serve.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode != 0
    assert "name the folder of the SavedModel" in done.stderr


def test_what_must_be_converted_is_said(tmp_path):
    """An ONNX model is none for TensorFlow Serving; a SavedModel is named in the command."""
    assert "this model is of kind onnx: convert it first" in texts_of("tfserving")["serve.sh"]
    card = own_model(tmp_path / "scaled", kind="tensorflow")
    text = texts_of("tfserving", of_model(card, str(tmp_path / "scaled")), card)["serve.sh"]
    assert "convert it" not in text
    assert f"# Use: sh serve.sh {tmp_path}/scaled\n" in text


def test_the_deployment_of_ray():
    """Replicas, what they reserve, batches, and room for a batch that waits."""
    data = yaml.safe_load(texts_of("ray", STUDY)["ray.yaml"])
    (application,) = data["applications"]
    assert application["args"] == {"model": "resnet", "threads": 2}
    (deployment,) = application["deployments"]
    assert deployment["num_replicas"] == 2
    assert deployment["max_ongoing_requests"] == 32
    memory = STUDY.best["replica.memory_mb"] * 1024 * 1024
    assert deployment["ray_actor_options"] == {"num_cpus": 0.5, "memory": memory}
    assert deployment["user_config"] == {"max_batch_size": 16, "batch_wait_timeout_s": 0.0003}


def test_a_batch_of_ray_is_counted_in_requests():
    """Of as many items as the study's: 16 items are 4 requests of 4."""
    study = dataclasses.replace(STUDY, client_batch=4)
    (application,) = yaml.safe_load(texts_of("ray", study)["ray.yaml"])["applications"]
    deployment = application["deployments"][0]
    assert deployment["user_config"]["max_batch_size"] == 4
    assert deployment["max_ongoing_requests"] == 8


@pytest.mark.parametrize("facts", [{"unbatched": "items interact"}, {"item_axis": 1}])
def test_requests_that_cannot_be_stacked_run_alone(facts):
    """Items that the study found to interact, or that lie along another axis than the first."""
    (spec,) = STUDY.signature.inputs
    spec = dataclasses.replace(spec, item_axis=facts.get("item_axis", 0))
    signature = dataclasses.replace(
        STUDY.signature, inputs=(spec,), unbatched=facts.get("unbatched", "")
    )
    study = dataclasses.replace(STUDY, signature=signature)
    (application,) = yaml.safe_load(texts_of("ray", study)["ray.yaml"])["applications"]
    assert application["deployments"][0]["user_config"]["max_batch_size"] == 1
    assert "max_batch_size: 0\n" in texts_of("triton", study)["resnet/config.pbtxt"]


def test_a_configuration_for_a_gpu_shares_one():
    """Replicas of Ray get equal parts; TensorFlow Serving has an image of its own."""
    study = with_best(replica__count=3, accelerator__clock_mhz=1410)
    (application,) = yaml.safe_load(texts_of("ray", study)["ray.yaml"])["applications"]
    assert application["deployments"][0]["ray_actor_options"]["num_gpus"] == 0.33
    assert "--gpus all tensorflow/serving:latest-gpu" in texts_of("tfserving", study)["serve.sh"]


def test_ray_reserves_no_more_cores_than_were_measured():
    """Quotas may overlap, reservations may not: Ray would wait for a larger machine."""
    study = with_best(replica__count=4, replica__cpu=2.0)
    (application,) = yaml.safe_load(texts_of("ray", study)["ray.yaml"])["applications"]
    assert application["deployments"][0]["ray_actor_options"]["num_cpus"] == 1.0
