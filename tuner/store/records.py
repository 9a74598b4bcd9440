"""Requests of one evaluation as columns in an npz file, readable by `numpy.load`.

Deflated at the fastest level. Due times are left out if they equal start times (closed loop).
"""

from __future__ import annotations

import io
import pathlib
import zipfile

import numpy as np

from tuner.errors import UsageError
from tuner.values.request_records import RequestRecords

COMPRESSION_LEVEL = 1
COLUMNS = ("intended_s", "started_s", "finished_s", "status", "connection")


def encode(records: RequestRecords) -> bytes:
    """Return the bytes of the npz file."""
    columns = {name: getattr(records, name) for name in COLUMNS}
    if np.array_equal(columns["intended_s"], columns["started_s"]):
        del columns["intended_s"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL
    ) as archive:
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, column, allow_pickle=False)
    return buffer.getvalue()


def read(path: pathlib.Path) -> RequestRecords | None:
    """Return a file's records, or None if it is missing; raise UsageError if it is broken."""
    try:
        with np.load(path, allow_pickle=False) as data:
            columns = {name: data[name] for name in COLUMNS if name in data}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as request records: {error}") from error
    if "started_s" in columns:
        columns.setdefault("intended_s", columns["started_s"])
    try:
        return RequestRecords(**columns)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as request records: {error}") from error
