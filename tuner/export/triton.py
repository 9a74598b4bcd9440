"""Export as a Triton model repository: `NAME/config.pbtxt` and `NAME/1/`.

ONNX models are copied for Triton's ONNX backend; others get a `model.py` for the Python backend.
Source: Triton's model configuration (model_config.proto).
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.model_spec import ModelSpec
from serving.values import Signature
from tuner.errors import UsageError
from tuner.export import container, provenance
from tuner.export.export_input import VARIANT, ExportInput, Files, Knobs, program
from tuner.metrics.server_resources import ServerResources

CONFIG = "config.pbtxt"


def files(subject: ExportInput) -> Files:
    """Return the model's folder."""
    card, signature = subject.model, subject.record.signature
    subject.refuse_program("no Triton backend does")
    if card.kind != "onnx" and signature is None:
        raise UsageError(
            f"study {subject.record.name} was made by an earlier version and lacks the "
            f"inputs and outputs of {card.name}: tune again, or write them into a Triton "
            "configuration by hand"
        )
    knobs = Knobs(subject.advice.configuration)
    body = "\n".join(_config(subject, knobs))
    knobs.take(VARIANT)
    cache_mb = knobs.whole("cache.capacity_mb")
    cache = f" --cache-config=local,size={cache_mb * 1024 * 1024}" if cache_mb else ""
    head = provenance.head(
        subject,
        "A model of Triton",
        use=f"tritonserver --model-repository={subject.quoted()}{cache}",
        knobs=knobs,
        reasons=_reasons(container.needs(subject), is_batched=subject.is_batched),
        otherwise="not a setting of Triton",
        remarks=_remarks(subject),
    )
    folder = f"{card.name}/{_version(card)}"
    model: Files = {f"{folder}/model.py": program("triton_model.py")}
    weights = card.weights(subject.variant)
    if card.kind == "onnx" and weights is not None:
        model = {f"{folder}/model.onnx": weights}
    return {f"{card.name}/{CONFIG}": f"{head}{body}\n", **model}


def quote(text: str) -> str:
    """Quote a string for protobuf's text format, escaping non-ASCII bytes."""
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        is_plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
        parts.append(chr(byte) if is_plain else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'


def _config(subject: ExportInput, knobs: Knobs) -> Iterator[str]:
    card, signature = subject.model, subject.record.signature
    threads = knobs.whole("replica.threads")
    yield f"name: {quote(card.name)}"
    yield 'platform: "onnxruntime_onnx"' if card.kind == "onnx" else 'backend: "python"'
    is_batched = subject.is_batched
    size = knobs.whole("batching.max_size") if is_batched else 0
    yield f"max_batch_size: {size}"
    if signature is not None:
        yield from _tensors(signature, is_batched=is_batched)
    if size > 1:
        knobs.take_as("batching.policy", "fixed")
        delay_us = knobs.whole("batching.timeout_us")
        yield f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}"
    count = knobs.whole("replica.count")
    device = "KIND_GPU gpus: [ 0 ]" if subject.is_for_gpu else "KIND_CPU"
    yield f"instance_group [ {{ count: {count} kind: {device} }} ]"
    yield f"version_policy {{ specific {{ versions: [ {_version(card)} ] }} }}"
    if knobs.whole("cache.capacity_mb"):
        yield "response_cache { enable: true }"
    parameters = {"intra_op_thread_count": str(threads), "inter_op_thread_count": "1"}
    if card.kind != "onnx":
        parameters = {"model": subject.model_elsewhere, "threads": str(threads)}
        if subject.record.is_trusted:
            parameters["trust"] = "true"
        if subject.variant is not None:
            parameters["variant"] = subject.variant
    for key, value in parameters.items():
        yield f"parameters {{ key: {quote(key)} value {{ string_value: {quote(value)} }} }}"


def _tensors(signature: Signature, *, is_batched: bool) -> Iterator[str]:
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            # Triton's dimensions are those of one item.
            shape = spec.shape[1:] if is_batched else spec.shape
            dims = ", ".join(map(str, shape or (1,)))
            datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
            text = f"name: {quote(spec.name)} data_type: TYPE_{datatype} dims: [ {dims} ]"
            if not shape:
                text += " reshape { shape: [ ] }"
            yield f"{kind} [ {{ {text} }} ]"


def _version(card: ModelSpec) -> int:
    return max(1, int(card.version)) if card.version.isdecimal() else 1


def _remarks(subject: ExportInput) -> Iterator[str]:
    card = subject.model
    yield "Measured with Luthier's own server; Triton's may differ: `tune load` measures it."
    if card.kind == "onnx":
        yield "Data that an ONNX file keeps in files of their own must be copied beside it."
    else:
        yield (
            f"The Python of Triton's python backend needs the package {subject.package}, and "
            "the model"
        )
        yield f"under the name or path in {CONFIG}."
    signature = subject.record.signature
    if signature is None:
        yield "Inputs and outputs are left to Triton, which reads them from the model's file."
    elif subject.is_batched:
        flat = [
            spec.name for spec in (*signature.inputs, *signature.outputs) if len(spec.shape) < 2
        ]
        if flat:
            yield f"Of shape [n, 1] instead of [n] in Triton: {', '.join(flat)}."


def _reasons(needed: ServerResources, *, is_batched: bool) -> dict[str, str]:
    memory = "" if needed.memory_mb is None else f" and {needed.memory_mb} MiB"
    whole = f"Triton limits no instance; the whole server may get {needed.cpu:g} cores{memory}"
    alone = "no batches are made of single items"
    if not is_batched:
        alone = "this model takes one request at a time"
    return {
        "replica.cpu": whole,
        "replica.memory_mb": whole,
        "batching.policy": f"Triton's batches have a fixed size and delay, and {alone}",
        "batching.max_size": alone,
        "batching.timeout_us": alone,
        "batching.slo_ms": "Triton's batcher has no objective",
        "routing.policy": "in Triton any free instance takes the next batch",
    }
