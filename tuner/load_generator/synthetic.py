"""Synthetic requests: random values in shapes from the signature and the user's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from serving.errors import InvalidSettings
from serving.tensors import shapes
from serving.tensors.input_values import ValueSpec
from serving.tensors.shapes import Axes, FreeAxis
from serving.tensors.sizes import Sizes
from serving.values import Signature, TensorSpec
from tuner.errors import UnknownSize, UsageError
from tuner.load_generator import oip_body, payloads
from tuner.load_generator.payload_files import MAX_BYTES
from tuner.load_generator.payloads import Payloads

REQUESTS = 64
VARYING_REQUESTS = 256
"""Number of distinct requests if shapes vary, enough for the median and the 90th percentile."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyntheticInputs:
    """Plan of a model's synthetic inputs."""

    signature: Signature
    axes: Axes
    contents: Mapping[str, ValueSpec]
    told: str = ""

    @property
    def missing(self) -> list[FreeAxis]:
        """Free dimensions without a declared size."""
        return shapes.missing(self.signature, self.axes)

    @property
    def varies(self) -> bool:
        """Whether requests differ in shape."""
        return any(size is not None and size.varies for axes in self.axes.values() for size in axes)

    def shape(self, spec: TensorSpec) -> str:
        """Return an input's shape without the item axis, with `?` for a missing size."""
        items = shapes.item_axis(spec, self.signature)
        sizes = [
            "?" if size is None else size.text
            for axis, size in enumerate(self.axes[spec.name])
            if axis != items
        ]
        return "x".join(sizes)

    def payloads(self, rng: np.random.Generator, *, model: str, client_batch: int = 1) -> Payloads:
        """Draw new requests, `MAX_BYTES` at most, or raise UnknownSize."""
        if self.missing:
            raise unknown(self.signature, self.missing)
        made: list[list[oip_body.RequestInput]] = []
        left = MAX_BYTES
        for _ in range(VARYING_REQUESTS if self.varies else REQUESTS):
            drawn = shapes.sample_shapes(self.signature, self.axes, rng, items=client_batch)
            request = [
                oip_body.RequestInput(spec, self.contents[spec.name].draw(rng, drawn[spec.name]))
                for spec in self.signature.inputs
            ]
            left -= sum(one.array.nbytes for one in request)
            if made and left < 0:
                break
            made.append(request)
        told = f", with {self.told}" if self.told else ""
        return dataclasses.replace(
            payloads.of_requests(
                made,
                path=payloads.infer_path(model),
                description=f"{len(made)} random inputs of the model's signature{told}",
                client_batch=client_batch,
            ),
            is_synthetic=True,
            guessed=tuple(name for name, content in self.contents.items() if content.is_guessed),
            indexes=tuple(name for name, content in self.contents.items() if content.is_whole),
        )


def plan_inputs(
    signature: Signature,
    contents: Mapping[str, ValueSpec],
    *,
    options: Sizes,
    card: Sizes,
    told: str = "",
) -> SyntheticInputs:
    """Bind sizes to the signature, options first, or raise UsageError if any does not fit."""
    try:
        first = shapes.bind(signature, options)
        # Written for the batched or the unbatched model.
        second = shapes.bind(signature, card, source="shapes of model.yaml:", is_settled=False)
    except InvalidSettings as error:
        raise UsageError(str(error)) from error
    axes = {
        spec.name: tuple(
            None if axis == shapes.item_axis(spec, signature) else mine or other
            for axis, (mine, other) in enumerate(
                zip(first[spec.name], second[spec.name], strict=True)
            )
        )
        for spec in signature.inputs
    }
    return SyntheticInputs(signature=signature, axes=axes, contents=contents, told=told)


def unknown(signature: Signature, lacking: list[FreeAxis]) -> UnknownSize:
    """Return the error for undeclared sizes."""
    free = "; ".join(map(str, lacking))
    return UnknownSize(
        f"{free}: the model accepts any size there; give the size of your requests (or "
        "--payload FILE)",
        option=shapes.option_for(signature, lacking),
    )
