"""Tells the kind of a model's file from its first and last bytes; no runtime is imported, nothing is unpickled.

In: a path. Out: a kind, or None where nothing tells one. Where the content does not, the suffix may: ONNX files, for
one, begin with nothing of their own.
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
"""Suffix -> kind, where a file's content tells none. Pickles are here so that the container can say how to convert
them."""
OFFERED = ".onnx, .ort, .skops, .npz, .pt, .pt2, .jit, .ubj, .cbm, XGBoost's .json, LightGBM's .txt, .py:NAME"
"""The suffixes that load, for messages."""
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
    (re.compile(rb"(?s).{4}ORTM"), "onnx"),  # ONNX Runtime's own format
)


_PICKLE = re.compile(rb"\x80[\x02-\x05]")


def file_kind(path: pathlib.Path) -> str | None:
    """The kind of a model's file, by what it holds, else by its suffix; None: neither tells one."""
    return kind_of(path) or SUFFIXES.get(path.suffix.lower())


def missed(path: pathlib.Path, card_file: str) -> str:
    """What was looked for in a file that tells no kind, as a message."""
    text = TEXTS.get(path.suffix.lower())
    if text is not None:
        return f"it is not {text}; another kind is named with --kind or in a folder's {card_file}"
    return (
        f"neither the suffix {path.suffix!r} nor the content tells the kind of model; expected one of "
        f"{OFFERED}, a folder with a {card_file} that names the kind, or --kind of `python -m serving`"
    )


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
