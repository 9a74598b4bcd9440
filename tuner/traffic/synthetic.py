"""Requests that are made up: random values in shapes that the model's signature and a user's words give.

In: a signature, sizes of free dimensions, values. Out: `Payloads`. A dimension of which nobody has told the size is an
error with the option that tells it: a model that takes any size says nothing of what it will be sent. Reads no files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from serving import shapes
from serving.errors import InvalidSettings
from serving.input_values import Content
from serving.shapes import Axes, FreeAxis
from serving.sizes import Sizes
from serving.values import Signature, TensorSpec
from tuner.errors import UnknownSize, WrongUse
from tuner.traffic import oip_body, payloads
from tuner.traffic.payload_files import MOST_BYTES
from tuner.traffic.payloads import Payloads

REQUESTS = 64
"""Different requests where all have one shape."""
VARYING_REQUESTS = 256
"""Where shapes differ: enough that the median and the tenth longest of a hundred are those of the distribution."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What would be made up for a model."""

    signature: Signature
    axes: Axes
    contents: Mapping[str, Content]
    told: str = ""
    """What was told of sizes and values, as it was written."""

    @property
    def missing(self) -> list[FreeAxis]:
        """Free dimensions of which nobody has told the size."""
        return shapes.missing(self.signature, self.axes)

    @property
    def varies(self) -> bool:
        """Whether requests differ in their shapes."""
        return any(size is not None and size.varies for axes in self.axes.values() for size in axes)

    def checked(self) -> Plan:
        """Itself, if all sizes are known.

        Raises:
            UnknownSize: one is not.
        """
        if lacking := self.missing:
            raise unknown(self.signature, lacking)
        return self

    def shape(self, spec: TensorSpec) -> str:
        """The shape of an input in requests, without the item axis; `?` where a size is missing."""
        items = shapes.item_axis(spec, self.signature)
        sizes = [
            "?" if size is None else size.text
            for axis, size in enumerate(self.axes[spec.name])
            if axis != items
        ]
        return "x".join(sizes)

    def payloads(self, rng: np.random.Generator, *, model: str, client_batch: int = 1) -> Payloads:
        """Requests, all drawn anew; fewer where they take more than `payload_files.MOST_BYTES` together.

        Raises:
            UnknownSize: a size is not known.
        """
        self.checked()
        made: list[list[oip_body.Input]] = []
        left = MOST_BYTES
        for _ in range(VARYING_REQUESTS if self.varies else REQUESTS):
            drawn = shapes.drawn(self.signature, self.axes, rng, items=client_batch)
            request = [
                oip_body.Input(spec, self.contents[spec.name].draw(rng, drawn[spec.name]))
                for spec in self.signature.inputs
            ]
            left -= sum(one.array.nbytes for one in request)
            if made and left < 0:
                break
            made.append(request)
        guessed = [name for name, content in self.contents.items() if content.is_guessed]
        told = f", with {self.told}" if self.told else ""
        return dataclasses.replace(
            payloads.of_requests(
                made,
                path=payloads.infer_path(model),
                description=f"{len(made)} random inputs of the model's signature{told}",
                client_batch=client_batch,
            ),
            is_synthetic=True,
            guessed=tuple(guessed),
            indexes=tuple(name for name, content in self.contents.items() if content.is_whole),
        )


def planned(
    signature: Signature,
    contents: Mapping[str, Content],
    *,
    options: Sizes,
    card: Sizes,
    told: str = "",
) -> Plan:
    """Sizes bound to the signature: what an option says before what the model's own file says.

    Raises:
        WrongUse: a name is none of an input or a dimension, or a size does not fit.
    """
    try:
        first = shapes.bind(signature, options)
        # Written for the model as it may be served: batched, or whole.
        second = shapes.bind(signature, card, source="shapes of model.yaml:", is_settled=False)
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error
    axes = {
        spec.name: tuple(
            None if axis == shapes.item_axis(spec, signature) else mine or other
            for axis, (mine, other) in enumerate(
                zip(first[spec.name], second[spec.name], strict=True)
            )
        )
        for spec in signature.inputs
    }
    return Plan(signature=signature, axes=axes, contents=contents, told=told)


def unknown(signature: Signature, lacking: list[FreeAxis]) -> UnknownSize:
    """The error of sizes that nobody has told."""
    free = "; ".join(map(str, lacking))
    return UnknownSize(
        f"{free}: the model takes any size there, so say what its requests have (or give --payload FILE)",
        option=shapes.option_for(signature, lacking),
    )
