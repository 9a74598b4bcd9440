"""Tells the kind of a model's file from its first and last bytes; no runtime is imported, nothing is unpickled.

In: a path. Out: a kind, or None where the content tells none: ONNX files, for one, begin with nothing of their own.
Whether the file is whole is for the replica to find out.

The readings are bounded: of an archive its directory's last mebibyte is searched for names, of a text its beginning.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

HEAD_BYTES = 4096
"""Read of a file's beginning."""
TAIL_BYTES = 1024 * 1024
"""Read of an archive's end, where the names of its parts are."""

TEXTS = {
    ".json": "an XGBoost model (an object that begins with the key 'learner', as Booster.save_model writes it)",
    ".txt": "a LightGBM model (it begins with the lines 'tree' and 'version=v...', as Booster.save_model writes it)",
}
"""Suffix that belongs to no kind -> what a model in such a file is."""

_ZIP = b"PK\x03\x04"
_PARTS: Mapping[bytes, str] = {
    b"/constants.pkl": "torch",  # TorchScript
    b"/archive_format": "torch",  # an exported program
    b"/data.pkl": "torch",  # anything else of torch.save, which the kind refuses
    b"schema.json": "sklearn",  # skops
}
"""Name of an archive's part -> kind; the first one that is there counts."""
_BEGINNINGS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"(?s)\{(?:[iU].|I..|l....|L.{8})learner\{"),
        "xgboost",
    ),  # UBJSON, a length before each name
    (
        re.compile(rb'\s*\{\s*("version"\s*:\s*\[[\d,\s]*\]\s*,\s*)?"learner"\s*:\s*\{'),
        "xgboost",
    ),
    (re.compile(rb"tree\r?\nversion=v"), "lightgbm"),
    (re.compile(rb"CBM1"), "catboost"),
)


_PICKLE = re.compile(rb"\x80[\x02-\x05]")


def kind_of(path: pathlib.Path) -> str | None:
    """The kind of a file that shows it; None of any other, and of what is no file."""
    if not path.is_file():
        return None
    part = _part_of(path)
    if part is not None:
        return _PARTS[part]
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return next((kind for beginning, kind in _BEGINNINGS if beginning.match(head)), None)


def _part_of(path: pathlib.Path) -> bytes | None:
    """The first of `_PARTS` that an archive has; None where it has none, or is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return None
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        names = file.read(TAIL_BYTES)
    return next((part for part in _PARTS if part in names), None)


def is_pickle(path: pathlib.Path) -> bool:
    """Whether a file begins as pickles do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _PICKLE.match(file.read(2)) is not None


def is_pickled(path: pathlib.Path) -> bool:
    """Whether a file is a pickle, or an archive around one that is no program of PyTorch."""
    return is_pickle(path) or _part_of(path) == b"/data.pkl"
