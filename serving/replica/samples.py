"""Sample inputs of a model: real ones from a file, its author's, or made up.

    a file           npz beside the model, one array per input, first axis items (`ModelCard.sample`)
    the model's own  `sample_inputs()`, in the same form
    made up          zeros and empty texts by the signature, free dimensions 1, for kinds whose models are
                     pure functions (`is_pure`): others may do anything with what they are given

In: a loaded model and perhaps a file. Out: arrays in the signature's datatypes; whether their shapes fit is
seen when they are run.
"""

from __future__ import annotations

import contextlib
import lzma
import math
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelLoadFailed
from serving.models import Arrays, LoadedModel
from serving.replica import arrays
from serving.values import TensorSpec

_UNPACKING = (zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What unpacking a damaged archive raises; RuntimeError where it is encrypted or packed in a way unknown here."""


class Samples(NamedTuple):
    """Where sample inputs come from, and how to get them."""

    source: str
    """`file`, `model`, or `zeros`."""
    where: str
    """For people."""
    rows: Callable[[int], Arrays]
    """Up to so many of them, at least one: {input name: (n, ...) array}; raises ModelLoadFailed."""


def samples_of(model: LoadedModel, file: pathlib.Path | None) -> Samples | None:
    """The best samples that there are of a model; None: there are none.

    Args:
        model: loaded.
        file: npz of real inputs, if there is one.

    Raises:
        ModelLoadFailed: the model's own samples lack an input, or are of another datatype.
        Exception: whatever the model's own `sample_inputs` raises.
    """
    inputs = model.signature.inputs
    if file is not None:
        return Samples("file", str(file), lambda count: _of_file(file, inputs, count))
    ask = getattr(model, "sample_inputs", None)
    own: Mapping[str, Any] | None = ask() if ask is not None else None
    if own is not None:
        fitted = {}
        for spec in inputs:
            if spec.name not in own:
                raise _missing("sample_inputs", spec.name, own)
            fitted[spec.name] = _fitted(np.asarray(own[spec.name]), spec, "sample_inputs")
        return Samples("model", "sample_inputs", lambda _count: fitted)
    if getattr(model, "is_pure", False):
        return Samples("zeros", "", lambda count: {one.name: _zeros(one, count) for one in inputs})
    return None


def _zeros(spec: TensorSpec, count: int) -> NDArray[Any]:
    """Made-up items of one input: zeros, or empty texts; free dimensions are 1."""
    shape = [1 if size < 0 else size for size in spec.shape]
    if spec.shape[:1] == (-1,):
        shape[0] = count
    if spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    return np.zeros(shape, arrays.DTYPES[spec.datatype])


def _of_file(file: pathlib.Path, inputs: tuple[TensorSpec, ...], count: int) -> Arrays:
    """The first samples of an npz.

    Only these are read: a file may hold more than the replica's memory.

    Raises:
        ModelLoadFailed: it cannot be read, or lacks an input.
    """
    samples: Arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
            for spec in inputs:
                if spec.name not in names:
                    raise _missing(str(file), spec.name, names)
                rows = max(count, 1, *spec.shape[:1])
                array = _first_rows(archive, f"{spec.name}.npy", rows)
                samples[spec.name] = _fitted(array, spec, str(file))
    except (OSError, ValueError, EOFError, RuntimeError, *_UNPACKING) as error:
        text = f"the samples in {file} cannot be read as npz: {error}"
        raise ModelLoadFailed(str(file), text) from error
    return samples


def _first_rows(archive: zipfile.ZipFile, member: str, count: int) -> NDArray[Any]:
    """Up to `count` rows of an array in an npz.

    Raises:
        ValueError: it is not one that is stored plainly, row by row.
    """
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
        if dtype.hasobject or (is_fortran and len(shape) > 1):
            raise ValueError(f"{member} is an array of {dtype}, expected plain rows (numpy.savez)")
        if shape:
            shape = (min(shape[0], count), *shape[1:])
        data = bytearray(stream.read(math.prod(shape) * dtype.itemsize))
        return np.frombuffer(data, dtype).reshape(shape)


def _fitted(array: NDArray[Any], spec: TensorSpec, where: str) -> NDArray[Any]:
    """The samples of one input in its datatype; their shape is checked when they are run.

    Raises:
        ModelLoadFailed: there is none in the array, or they are of another kind.
    """
    if array.ndim and not len(array):
        raise ModelLoadFailed(where, f"{where} has no sample of the input {spec.name!r} in it")
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


def _missing(where: str, name: str, given: Iterable[str]) -> ModelLoadFailed:
    listed = ", ".join(sorted(given)) or "nothing"
    return ModelLoadFailed(where, f"{where} has no samples of the input {name!r}, only {listed}")
