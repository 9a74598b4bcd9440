"""Export as batching parameters for TensorFlow Serving, with the command that uses them.

Source: tensorflow/serving, session_bundle_config.proto (BatchingParameters) and main.cc (flags).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from tuner.export import container, provenance
from tuner.export.export_input import VARIANT, ExportInput, Files, Knobs

PARAMETERS = "batching.pbtxt"
SCRIPT = "serve.sh"
IMAGE = "tensorflow/serving"
REASONS = {
    "batching.policy": "TensorFlow Serving's batches have a fixed size and timeout",
    "batching.slo_ms": "TensorFlow Serving's batching has no objective",
    "cache.capacity_mb": "TensorFlow Serving has no cache",
    "routing.policy": "in TensorFlow Serving any free batch thread takes the next batch",
}


_PROLOGUE = """\
set -eu
here=$(cd "$(dirname "$0")" && pwd)
model=$(cd "${1:?name the folder of the SavedModel: the one with saved_model.pb}" && pwd)
"""


def files(subject: ExportInput) -> Files:
    """Return the parameters and the script."""
    knobs = Knobs(subject.advice.configuration)
    knobs.take_as("batching.policy", "fixed")
    size = knobs.whole("batching.max_size")
    parameters = {
        "max_batch_size": size,
        "batch_timeout_micros": knobs.whole("batching.timeout_us"),
        "num_batch_threads": knobs.whole("replica.count"),
        # The queue counts batches there, items here.
        "max_enqueued_batches": math.ceil(knobs.whole("scheduling.queue_capacity") / size),
    }
    body = "".join(f"{name} {{ value: {value} }}\n" for name, value in parameters.items())
    command = " \\\n    ".join(_command(subject, knobs))
    kind = subject.model.kind
    folder = "FOLDER"
    remarks = [
        "Measured with Luthier's own server; TensorFlow Serving may differ: `tune load` measures it."
    ]
    if kind == "tensorflow":
        knobs.take(VARIANT)  # by its folder
        folder = shlex.quote(str(subject.model.weights(subject.variant)))
    else:
        remarks += [
            f"TensorFlow Serving runs SavedModels alone, and this model is of kind {kind}: convert it first, and",
            "measure again, for a converted model is another one.",
        ]
    head = provenance.head(
        subject,
        "TensorFlow Serving",
        use=f"sh {subject.quoted(SCRIPT)} {folder}",
        knobs=knobs,
        reasons=REASONS,
        otherwise="not a setting of TensorFlow Serving",
        remarks=remarks,
    )
    return {
        PARAMETERS: head + body,
        SCRIPT: f"#!/bin/sh\n{head}{_PROLOGUE}\nexec {command}\n",
    }


def _command(subject: ExportInput, knobs: Knobs) -> Iterator[str]:
    needed = container.needs(subject, has_cache=False)
    knobs.take("replica.cpu", "replica.memory_mb")  # part of `needed`
    knobs.take_as("cache.capacity_mb", 0)
    count, threads = knobs.whole("replica.count"), knobs.whole("replica.threads")
    name = subject.model.name
    yield "docker run --rm"
    yield f"--cpus {needed.cpu:g}"
    if needed.memory_mb is not None:
        yield f"--memory {needed.memory_mb}m --memory-swap {needed.memory_mb}m"
    yield "--publish 127.0.0.1:8500:8500 --publish 127.0.0.1:8501:8501"
    yield f'--volume "$model":{shlex.quote(f"/models/{name}/1")}:ro'
    yield f'--volume "$here/{PARAMETERS}":/{PARAMETERS}:ro'
    yield f"--env MODEL_NAME={shlex.quote(name)}"
    yield f"--gpus all {IMAGE}:latest-gpu" if subject.is_for_gpu else IMAGE
    yield f"--enable_batching --batching_parameters_file=/{PARAMETERS}"
    # One thread pool for all batches: the replicas' threads together.
    yield f"--tensorflow_intra_op_parallelism={count * threads}"
    yield f"--tensorflow_inter_op_parallelism={count}"
