"""What a model is sent, and where that is known from: never from nowhere.

    --payload FILE               its requests
    --shape, --values            made up, of these sizes and values
    shapes of model.yaml         made up, of these sizes
    the model's own sample       its items
    nothing                      made up, where the model leaves no size free

In: settings, the model's card, its signature. Out: payloads, and the same in words, input by input. Reads the files
that are named, starts nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from serving import input_values, shapes, sizes, user_files
from serving.errors import InvalidSettings
from serving.sizes import Size
from serving.values import ModelCard, Signature, TensorSpec
from tuner.errors import TunerError, UnknownSize, WrongUse
from tuner.settings import TargetSettings
from tuner.traffic import payload_files, stacking, synthetic
from tuner.traffic.payloads import Payloads
from tuner.traffic.synthetic import Plan
from tuner.values import InputFacts, SentInputs

MOST_BYTES = 64 << 20
"""Of a file with sizes or values."""
NO_CARD = ModelCard(name="", version="", kind="other", path=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sending:
    """What would be sent to a model, before it is known that all is told."""

    signature: Signature
    card: ModelCard
    file: pathlib.Path | None
    """Of real requests; None: they are made up."""
    is_own: bool
    """Whether that is the model's own sample."""
    plan: Plan
    """Of what is made up; of real requests it tells only what is free."""

    @property
    def problem(self) -> UnknownSize | None:
        """What has to be told before anything can be sent; None: nothing."""
        lacking = [] if self.file is not None else self.plan.missing
        return synthetic.unknown(self.signature, lacking) if lacking else None

    @property
    def source(self) -> str:
        """Where it is known from, for people."""
        if self.file is not None:
            return "the model's own sample" if self.is_own else f"--payload {self.file.name}"
        if self.plan.told:
            instead = "; its own sample is not sent" if self.card.sample is not None else ""
            return f"made up, with {self.plan.told}{instead}"
        return "made up"

    @property
    def facts(self) -> SentInputs:
        """In words, input by input."""
        return SentInputs(
            inputs=tuple(self._facts_of(spec) for spec in self.signature.inputs),
            whole=shapes.why_whole(self.signature),
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
        """Along which axis of an input items lie, and why."""
        if whole := shapes.why_whole(self.signature):
            return f"none: {whole}"
        if axis is None:
            return "none: shared by all items of a batch"
        if self.card.item_axis or self.card.shared:
            return f"axis {axis}, as model.yaml tells"
        return f"axis {axis}: the first one of every input and output is free"

    def payloads(self, *, model: str, client_batch: int, seed: int) -> Payloads:
        """The requests.

        Raises:
            WrongUse: the file cannot be read or does not fit, a size is not known, or the model takes no client batch.
        """
        stacking.check_free(self.signature, client_batch, model)
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
            except WrongUse as error:
                if not self.is_own:
                    raise
                raise TunerError(f"the model's own sample does not fit it: {error}") from error
        return dataclasses.replace(found, sent=self.facts)


def sending(target: TargetSettings, card: ModelCard | None, signature: Signature) -> Sending:
    """What would be sent.

    Args:
        target: what was asked for.
        card: of the model; None: nothing is known of it but its signature.
        signature: of the model as it is served.

    Raises:
        WrongUse: what is told fits no input, or a file cannot be read.
    """
    card, signature = card or NO_CARD, signature.asked
    file = None if target.payload is None else pathlib.Path(target.payload)
    is_own = file is None and not (target.shape or target.values or card.shapes or card.values)
    if is_own:
        file = card.sample
    values = {**input_values.values_of(card.values), **_values(target)}
    try:
        contents = input_values.contents_of(
            [f"{name}={told}" for name, told in values.items()],
            signature,
            read=_reading("--values"),
        )
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error
    plan = synthetic.planned(
        signature,
        contents,
        options=told_sizes(target),
        card=_sizes(card.shapes, f"shapes of {card.name}'s model.yaml:"),
        told=" ".join((*card.shapes, *card.values, *target.shape, *target.values)),
    )
    return Sending(
        signature=signature,
        card=card,
        file=file,
        is_own=is_own and file is not None,
        plan=plan,
    )


def told_sizes(target: TargetSettings) -> Mapping[str, tuple[Size, ...]]:
    """The sizes that options tell.

    Raises:
        WrongUse: an option has another form, or its file cannot be read.
    """
    return _sizes(target.shape, "--shape")


def check(target: TargetSettings) -> None:
    """Refuse options that are wrong whatever the model is, before anything starts.

    Raises:
        WrongUse: an option has another form, or its file cannot be read.
    """
    told_sizes(target)
    _values(target)


def server_settings(target: TargetSettings) -> dict[str, str]:
    """Sizes and values for a server, which makes up inputs for its warm-up: settings by name, where any are told.

    Values of a file, and what has spaces in it, are the tuner's alone.

    Raises:
        WrongUse: an option has another form, or its file cannot be read.
    """
    values = [
        f"{name}={told}"
        for name, told in _values(target).items()
        if not told.startswith("@") and not any(map(str.isspace, name + told))
    ]
    told = {
        "model.shapes": " ".join(
            text for text in sizes.written(told_sizes(target)) if not any(map(str.isspace, text))
        ),
        "model.values": " ".join(values),
    }
    return {name: text for name, text in told.items() if text}


def _values(target: TargetSettings) -> dict[str, str]:
    try:
        return input_values.values_of(target.values)
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error


def _sizes(texts: Sequence[str], source: str) -> Mapping[str, tuple[Size, ...]]:
    try:
        return sizes.sizes_of(texts, read=_reading(source), source=source)
    except InvalidSettings as error:
        raise WrongUse(str(error)) from error


def _reading(flag: str) -> Callable[[str], str]:
    """What reads the files that an option names; refuses one that cannot be read or is too large."""

    def read(path: str) -> str:
        try:
            return user_files.text(path, max_bytes=MOST_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise WrongUse(f"{flag} @{path} cannot be read: {reason}") from error

    return read
