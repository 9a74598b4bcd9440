"""Recognition of a model file's kind by its first and last bytes, or by its suffix.

Imports and unpickles nothing; reads are bounded. The replica checks integrity.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

HEAD_BYTES = 4096
TAIL_BYTES = 1024 * 1024

TEXTS = {
    ".json": "an XGBoost model (an object that begins with the key 'learner', as Booster.save_model writes it)",
    ".txt": "a LightGBM model (it begins with the lines 'tree' and 'version=v...', as Booster.save_model writes it)",
}
"""Expected content by suffix, for suffixes that do not imply a kind."""

SUFFIXES: dict[str, str] = {
    ".onnx": "onnx",
    ".ort": "onnx",
    ".skops": "sklearn",
    ".npz": "sklearn",
    ".pkl": "sklearn",
    ".pickle": "sklearn",
    ".joblib": "sklearn",
    ".pt": "torch",
    ".pt2": "torch",
    ".pth": "torch",
    ".jit": "torch",
    ".ubj": "xgboost",
    ".cbm": "catboost",
    ".py": "python",
}
"""Kind by suffix if content does not decide; for pickles, a kind that explains how to convert."""
OFFERED = ".onnx, .ort, .skops, .npz, .pt, .pt2, .jit, .ubj, .cbm, XGBoost's .json, LightGBM's .txt, .py:NAME"
_ZIP = b"PK\x03\x04"
_PARTS: Mapping[bytes, str] = {
    b"/constants.pkl": "torch",  # TorchScript
    b"/archive_format": "torch",  # an exported program
    b"/data.pkl": "torch",  # other torch.save files, which the kind rejects
    b"schema.json": "sklearn",  # skops
}
"""Kind by part of an archive; the first one present decides."""
_BEGINNINGS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"(?s)\{(?:[iU].|I..|l....|L.{8})learner\{"),
        "xgboost",
    ),  # UBJSON: lengths precede names
    (
        re.compile(rb'\s*\{\s*("version"\s*:\s*\[[\d,\s]*\]\s*,\s*)?"learner"\s*:\s*\{'),
        "xgboost",
    ),
    (re.compile(rb"tree\r?\nversion=v"), "lightgbm"),
    (re.compile(rb"CBM1"), "catboost"),
    (re.compile(rb"(?s).{4}ORTM"), "onnx"),  # ONNX Runtime's format
)


_PICKLE = re.compile(rb"\x80[\x02-\x05]")


def file_kind(path: pathlib.Path) -> str | None:
    """Return a file's kind by content, or by suffix, or None."""
    return kind_of(path) or SUFFIXES.get(path.suffix.lower())


def unrecognised_message(path: pathlib.Path, card_file: str) -> str:
    """Return an error message for a file of unknown kind."""
    text = TEXTS.get(path.suffix.lower())
    if text is not None:
        return f"it is not {text}; choose another kind with --kind or in a folder's {card_file}"
    return (
        f"neither the suffix {path.suffix!r} nor the content identifies the kind of "
        f"model; expected one of {OFFERED}, a folder with a {card_file} that names the "
        "kind, or --kind of `python -m serving`"
    )


def kind_of(path: pathlib.Path) -> str | None:
    """Return a file's kind by its content, or None."""
    if not path.is_file():
        return None
    part = _part_of(path)
    if part is not None:
        return _PARTS[part]
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return next((kind for beginning, kind in _BEGINNINGS if beginning.match(head)), None)


def _part_of(path: pathlib.Path) -> bytes | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return None
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        names = file.read(TAIL_BYTES)
    return next((part for part in _PARTS if part in names), None)


def is_pickle(path: pathlib.Path) -> bool:
    """Whether a file begins like a pickle."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _PICKLE.match(file.read(2)) is not None


def is_pickled(path: pathlib.Path) -> bool:
    """Whether a file is a pickle, or an archive that contains one and is not a PyTorch program."""
    return is_pickle(path) or _part_of(path) == b"/data.pkl"
