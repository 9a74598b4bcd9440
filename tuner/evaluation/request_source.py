"""Sources of a model's requests, in order of precedence:

--payload FILE               its requests
--shape, --values            synthetic, with these sizes and values
shapes in model.yaml         synthetic, with these sizes
the model's own sample       its items
none of these                synthetic, if no size is variable
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import types
from collections.abc import Mapping, Sequence

import numpy as np

from serving.errors import InvalidSettings
from serving.model_spec import ModelSpec
from serving.system import user_files
from serving.tensors import input_values, shapes, sizes
from serving.tensors.sizes import Size
from serving.values import Signature, TensorSpec
from tuner.engines.description import RequestFormat
from tuner.errors import TunerError, UnknownSize, UsageError
from tuner.load_generator import oip_body, payload_files, plain_payloads, synthetic
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.synthetic import SyntheticInputs
from tuner.settings.target import TargetSettings
from tuner.values.study_record import InputFacts, InputSummary

MAX_BYTES = 64 << 20
"""Maximum size of a file with sizes or values."""
OPTIONS = types.MappingProxyType({"model.shapes": "--shape", "model.values": "--values"})
"""Setting of a server -> option of a study."""
NO_SPEC = ModelSpec(name="", version="", kind="other", path=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSource:
    """Source of a model's requests: a file, or synthetic inputs, whose sizes may be missing."""

    signature: Signature
    card: ModelSpec
    file: pathlib.Path | None
    is_own: bool
    """Whether `file` is the sample that comes with the model."""
    plan: SyntheticInputs

    @property
    def problem(self) -> UnknownSize | None:
        """Error about the missing input sizes, or None."""
        lacking = [] if self.file is not None else self.plan.missing
        return synthetic.unknown(self.signature, lacking) if lacking else None

    @property
    def source(self) -> str:
        """Origin of the inputs, in words."""
        if self.file is not None:
            return "the model's own sample" if self.is_own else f"--payload {self.file.name}"
        if self.plan.told:
            instead = "; its own sample is not sent" if self.card.sample is not None else ""
            return f"synthetic, with {self.plan.told}{instead}"
        return "made up"

    @property
    def facts(self) -> InputSummary:
        """Summary of the inputs in words."""
        return InputSummary(
            inputs=tuple(self._facts_of(spec) for spec in self.signature.inputs),
            whole=shapes.why_unbatched(self.signature),
            source=self.source,
        )

    def _facts_of(self, spec: TensorSpec) -> InputFacts:
        items = shapes.item_axis(spec, self.signature)
        axes = [
            "items" if axis == items else str(size) if size >= 0 else spec.dimension(axis) or "?"
            for axis, size in enumerate(spec.shape)
        ]
        free = [
            spec.dimension(axis) or f"axis {axis}"
            for axis, size in enumerate(spec.shape)
            if size < 0 and axis != items
        ]
        if self.file is not None:
            sent = self.source
        else:
            shape = self.plan.shape(spec)
            said = self.plan.contents[spec.name].says
            sent = f"{shape} of {said}" if shape else said
        return InputFacts(
            name=spec.name,
            datatype=spec.datatype,
            shape=f"[{', '.join(axes)}]",
            items=self._items(items),
            free=tuple(free),
            sent=sent,
        )

    def _items(self, axis: int | None) -> str:
        if whole := shapes.why_unbatched(self.signature):
            return f"none: {whole}"
        if axis is None:
            return "none: shared by all items of a batch"
        if self.card.item_axis or self.card.shared:
            return f"axis {axis}, from model.yaml"
        return f"axis {axis}: the first axis of every input and output is free"

    def payloads(self, *, model: str, client_batch: int, seed: int) -> Payloads:
        """Return the requests, or raise UsageError if file, size or client batch is unsuitable."""
        oip_body.check_client_batch(self.signature, client_batch, model)
        if self.file is None:
            rng = np.random.default_rng(seed)
            found = self.plan.payloads(rng, model=model, client_batch=client_batch)
            if self.card.sample is not None:
                found = dataclasses.replace(
                    found, description=f"{found.description}, instead of the model's own sample"
                )
        else:
            try:
                found = payload_files.from_file(
                    self.file, self.signature, model=model, client_batch=client_batch
                )
            except UsageError as error:
                if not self.is_own:
                    raise
                raise TunerError(f"the model's own sample does not fit it: {error}") from error
        return dataclasses.replace(found, sent=self.facts)


def make_request_source(
    target: TargetSettings, card: ModelSpec | None, signature: Signature
) -> RequestSource:
    """Return the source of a target's requests, from its signature and any model spec (`card`)."""
    card, signature = card or NO_SPEC, signature.sizing_signature
    file = None if target.payload is None else pathlib.Path(target.payload)
    is_own = file is None and not (target.shape or target.values or card.shapes or card.values)
    if is_own:
        file = card.sample
    values = {**input_values.values_of(card.values), **_values(target)}
    try:
        contents = input_values.value_specs_of(
            [f"{name}={told}" for name, told in values.items()],
            signature,
            read=functools.partial(_read, flag="--values"),
        )
    except InvalidSettings as error:
        raise UsageError(str(error)) from error
    plan = synthetic.plan_inputs(
        signature,
        contents,
        options=declared_sizes(target),
        card=_sizes(card.shapes, f"shapes of {card.name}'s model.yaml:"),
        told=" ".join((*card.shapes, *card.values, *target.shape, *target.values)),
    )
    return RequestSource(
        signature=signature,
        card=card,
        file=file,
        is_own=is_own and file is not None,
        plan=plan,
    )


def declared_sizes(target: TargetSettings) -> Mapping[str, tuple[Size, ...]]:
    """Return the sizes given as options, or raise UsageError if malformed or unreadable."""
    return _sizes(target.shape, "--shape")


def check(target: TargetSettings) -> None:
    """Raise UsageError if a size or value is malformed, whatever the model."""
    declared_sizes(target)
    _values(target)


def server_settings(target: TargetSettings) -> dict[str, str]:
    """Return server settings for warm-up inputs, leaving out values with spaces or from files."""
    values = [
        f"{name}={told}"
        for name, told in _values(target).items()
        if not told.startswith("@") and not any(map(str.isspace, name + told))
    ]
    shapes_told = [
        text for text in sizes.to_texts(declared_sizes(target)) if not any(map(str.isspace, text))
    ]
    told = dict(zip(OPTIONS, (" ".join(shapes_told), " ".join(values)), strict=True))
    return {name: text for name, text in told.items() if text}


def _values(target: TargetSettings) -> dict[str, str]:
    try:
        return input_values.values_of(target.values)
    except InvalidSettings as error:
        raise UsageError(str(error)) from error


def _sizes(texts: Sequence[str], source: str) -> Mapping[str, tuple[Size, ...]]:
    try:
        return sizes.sizes_of(texts, read=functools.partial(_read, flag=source), source=source)
    except InvalidSettings as error:
        raise UsageError(str(error)) from error


def _read(path: str, *, flag: str) -> str:
    try:
        return user_files.text(path, max_bytes=MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{flag} @{path} cannot be read: {reason}") from error


def plain_requests(request: RequestFormat, target: TargetSettings, card: ModelSpec) -> Payloads:
    """Make requests for an engine that cannot describe its model, or raise UsageError."""
    for flag, told in (("--shape", target.shape), ("--values", target.values)):
        if told:
            raise UsageError(
                f"{flag} {told[0]}: a {request.protocol} server does not report the "
                "inputs of its model; use --payload FILE"
            )
    if target.client_batch > 1 and not _is_batched(request, target):
        raise UsageError(
            f"--client-batch {target.client_batch}: the items of a {request.protocol} request cannot be "
            "counted here; use --client-batch 1"
        )
    to, headers = request.infer_path(card.name), request.headers
    given = None if target.payload is None else pathlib.Path(target.payload)
    is_tfs = request.protocol == "tensorflow-serving"
    if is_tfs or request.is_tensor:
        arrays = given or card.sample
        if arrays is None:
            raise UsageError(
                f"model {card.name!r} has no sample inputs; use --payload FILE, an .npz "
                "with one array per input"
            )
        if is_tfs and arrays.suffix != ".npz":
            return plain_payloads.from_file(
                arrays, to=to, method="POST", headers=headers, response="tensorflow-serving"
            )
        if is_tfs:
            return plain_payloads.instances(
                arrays, to=to, headers=headers, client_batch=target.client_batch
            )
        return plain_payloads.tensors(
            arrays, to=to, method=request.method, headers=headers, response=request.answer or ""
        )
    body = given or request.body
    if body is not None:
        return plain_payloads.from_file(body, to=to, method=request.method, headers=headers)
    if request.method == "GET":
        return Payloads(
            requests=(b"",),
            headers=headers,
            path=to,
            method="GET",
            answer="",
            description="GET without a body",
        )
    raise UsageError(f"{request.method} {to} needs a body; use --payload FILE")


def _is_batched(request: RequestFormat, target: TargetSettings) -> bool:
    is_file = target.payload is not None and not target.payload.endswith(".npz")
    return request.protocol == "tensorflow-serving" and not is_file
