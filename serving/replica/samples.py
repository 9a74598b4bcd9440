"""Sample inputs of a model, real or synthetic: requests of one item each, or unbatched requests.

file     npz file next to the model, with one array per input (`ModelSpec.sample`)
model    `sample_inputs()` of the model, in the same form
made-up  random numbers and empty strings that fit the signature; only for kinds whose models are
pure functions (`is_pure`), and only if all free dimensions have declared sizes
"""

from __future__ import annotations

import contextlib
import lzma
import math
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidSettings, ModelLoadFailed
from serving.models import Arrays, LoadedModel
from serving.tensors import arrays
from serving.tensors.input_values import ValueSpec, value_specs_of
from serving.tensors.sample_rows import SampleLayout, find_layouts, layouts_of
from serving.tensors.shapes import bind, missing, option_for, typical
from serving.tensors.sizes import sizes_of
from serving.values import Signature, TensorSpec

MADE_UP = "made-up"
_MAX_SYNTHETIC = (1, 9, 127)
"""Upper bounds for synthetic integers, which may be small indexes or the bytes of a file."""
_UNPACKING = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors that a damaged archive raises; encryption or an unknown method raises RuntimeError."""


class Samples(NamedTuple):
    """Source of sample inputs."""

    source: str
    """Kind of source: `file`, `model`, or `made-up`."""
    where: str
    requests: Callable[[int], list[Arrays]]
    """Return the given number of requests, possibly repeated, or raise ModelLoadFailed."""
    pairs: Callable[[], Iterator[list[Arrays]]]
    """Yield pairs of requests; synthetic requests may be invalid."""


def samples_of(
    model: LoadedModel,
    file: pathlib.Path | None,
    shapes: Sequence[str] = (),
    values: Sequence[str] = (),
) -> Samples | str:
    """Return the best samples of a model, or why there are none ("" if its kind is not pure).

    Args:
        model: a loaded model with detected item axes.
        file: npz file of real inputs, or None.
        shapes: declared sizes; see `sizes.sizes_of`.
        values: synthetic values; see `input_values.value_specs_of`.

    Raises:
        ModelLoadFailed: declared inputs are invalid, or the model's own samples do not fit.
        Exception: whatever `sample_inputs` raises.
    """
    signature = model.signature
    try:
        sizes = sizes_of(shapes, source="model.shapes")
        axes = bind(signature, sizes, source="model.shapes", is_settled=not signature.is_batched)
        contents = value_specs_of(values, signature, source="model.values")
    except InvalidSettings as error:
        raise ModelLoadFailed("its inputs", str(error)) from error
    if file is not None:
        return _real("file", str(file), lambda count: _of_file(file, signature, count))
    ask = getattr(model, "sample_inputs", None)
    own: Mapping[str, Any] | None = ask() if ask is not None else None
    if own is not None:
        fitted = {}
        for spec in signature.inputs:
            if spec.name not in own:
                raise _missing("sample_inputs", spec.name, own)
            fitted[spec.name] = _to_datatype(np.asarray(own[spec.name]), spec, "sample_inputs")
        shapes_of_own = {name: array.shape for name, array in fitted.items()}
        ways = _ways(shapes_of_own, signature, "sample_inputs")
        arranged = {name: ways[name].arrange(array) for name, array in fitted.items()}
        return _real("model", "sample_inputs", lambda _count: arranged)
    if not getattr(model, "is_pure", False):
        return ""
    lacking = missing(signature, axes)
    if lacking:
        hint = option_for(signature, lacking).replace("--shape ", "")
        return (
            f"{'; '.join(map(str, lacking))}: its size is free and was not given; give "
            f'samples, or model.shapes, as model.shapes="{hint}"'
        )
    shape = typical(axes)
    return Samples(
        MADE_UP,
        "",
        lambda count: _made_up(signature, shape, contents, count, most=1),
        lambda: (_made_up(signature, shape, contents, 2, most=most) for most in _MAX_SYNTHETIC),
    )


def _real(source: str, where: str, read: Callable[[int], Arrays]) -> Samples:

    def requests(count: int) -> list[Arrays]:
        samples = read(count)
        return [
            {name: np.asarray(array[index % len(array)]) for name, array in samples.items()}
            for index in range(count)
        ]

    def pairs() -> Iterator[list[Arrays]]:
        several = requests(2 * len(_MAX_SYNTHETIC))
        return (several[place : place + 2] for place in range(0, len(several), 2))

    return Samples(source, where, requests, pairs)


def _made_up(
    signature: Signature,
    shapes: Mapping[str, tuple[int, ...]],
    contents: Mapping[str, ValueSpec],
    count: int,
    *,
    most: int,
) -> list[Arrays]:
    rng = np.random.default_rng(0)
    requests: list[Arrays] = [{} for _ in range(count)]
    for spec in signature.inputs:
        shape = shapes[spec.name]
        is_shared = signature.is_batched and spec.item_axis is None
        for index, request in enumerate(requests):
            request[spec.name] = (
                requests[0][spec.name]
                if is_shared and index
                else _random(contents[spec.name], shape, rng, most)
            )
    return requests


def _random(
    content: ValueSpec, shape: tuple[int, ...], rng: np.random.Generator, most: int
) -> NDArray[Any]:
    if content.is_guessed:
        return rng.integers(0, most + 1, shape).astype(arrays.DTYPES[content.spec.datatype])
    if most == _MAX_SYNTHETIC[0] and not content.text and content.spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    return content.draw(rng, shape)


def _ways(
    shapes: Mapping[str, tuple[int, ...]], signature: Signature, where: str
) -> dict[str, SampleLayout]:
    found = find_layouts(shapes, signature)
    if found is not None:
        return found
    counts = {}
    for spec in signature.inputs:
        shape = shapes[spec.name]
        ways = layouts_of(shape, spec, signature)
        if not ways:
            raise ModelLoadFailed(
                where,
                f"the samples of the input {spec.name!r} ({where}): their shape is {list(shape)}, the model takes "
                f"{list(spec.shape)}; expected that, or one axis more, which counts samples",
            )
        if not ways[0].samples:
            raise _without_sample(where, spec)
        counts[spec.name] = ways[0].samples
    listed = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
    raise ModelLoadFailed(where, f"{where} has different numbers of samples per input: {listed}")


def _of_file(file: pathlib.Path, signature: Signature, count: int) -> Arrays:
    """Return the first `count` samples of an npz file, or raise ModelLoadFailed if they do not fit.

    Only these rows are read if possible, as a file may exceed the replica's memory.
    """
    samples: Arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
            shapes = {}
            for spec in signature.inputs:
                if spec.name not in names:
                    raise _missing(str(file), spec.name, names)
                with archive.open(f"{spec.name}.npy") as stream:
                    shapes[spec.name], _ = _head(stream, spec.name)
            ways = _ways(shapes, signature, str(file))
            for spec in signature.inputs:
                way = ways[spec.name]
                with archive.open(f"{spec.name}.npy") as stream:
                    array = _first_rows(stream, spec.name, way.rows(count))
                samples[spec.name] = way.arrange(_to_datatype(array, spec, str(file)))
    except (OSError, ValueError, EOFError, RuntimeError, *_UNPACKING) as error:
        text = f"the samples in {file} cannot be read as npz: {error}"
        raise ModelLoadFailed(str(file), text) from error
    return samples


def _head(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    if dtype.hasobject or (is_fortran and len(shape) > 1):
        raise ValueError(f"{name}.npy is an array of {dtype}, expected plain rows (numpy.savez)")
    return shape, dtype


def _first_rows(stream: IO[bytes], name: str, count: int | None) -> NDArray[Any]:
    shape, dtype = _head(stream, name)
    if shape and count is not None:
        shape = (min(shape[0], count), *shape[1:])
    data = bytearray(stream.read(math.prod(shape) * dtype.itemsize))
    return np.frombuffer(data, dtype).reshape(shape)


def _to_datatype(array: NDArray[Any], spec: TensorSpec, where: str) -> NDArray[Any]:
    """Convert samples to the input's datatype, or raise ModelLoadFailed; do not check shapes."""
    if array.ndim and not len(array):
        raise _without_sample(where, spec)
    is_text = array.dtype.kind in "SUO"
    if is_text and spec.datatype == "BYTES":
        return array
    if not is_text and spec.datatype != "BYTES":
        with contextlib.suppress(TypeError):
            return array.astype(arrays.DTYPES[spec.datatype], casting="same_kind", copy=False)
    raise ModelLoadFailed(
        where,
        f"the samples of the input {spec.name!r} ({where}) are {array.dtype}, "
        f"expected {spec.datatype}",
    )


def _without_sample(where: str, spec: TensorSpec) -> ModelLoadFailed:
    return ModelLoadFailed(where, f"{where} has no sample of the input {spec.name!r}")


def _missing(where: str, name: str, given: Iterable[str]) -> ModelLoadFailed:
    listed = ", ".join(sorted(given)) or "nothing"
    return ModelLoadFailed(where, f"{where} has no samples of the input {name!r}, only {listed}")
