"""The models of the gallery: read from `gallery/models.yaml`, their files fetched once and kept.

In: names. Out: entries, and where the file of each lies. A wheel comes by `pip download --no-deps`
and only the file that is wanted is taken out of it; the tabular models are trained by
`gallery/train.py`. Nothing of a wheel is imported or run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent / "gallery"
FETCH_TIMEOUT_S = 300


class CannotFetch(Exception):
    """A file could not be had; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One file, and what has to be told of it."""

    name: str
    """Of its row, and of the model that is served."""
    file: str
    """In the wheel, or as `train.py` names it."""
    domain: str
    wheel: str = ""
    """Project and version; empty: it is trained here."""
    shapes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    values: Mapping[str, object] = dataclasses.field(default_factory=dict)
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keys of a `model.yaml`."""
    signature: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of a file that does not tell its own."""
    notes: str = ""
    is_stateful: bool = False
    """Whether its answers depend on the calls before."""

    @property
    def project(self) -> str:
        """Of the wheel; of a trained one its file's kind."""
        return self.wheel.partition("==")[0] or self.name.rpartition("-")[2]

    @property
    def suffix(self) -> str:
        """Of the file."""
        return pathlib.PurePath(self.file).suffix

    @property
    def options(self) -> tuple[str, ...]:
        """What has to be told, as options of `tune`."""
        told = [("--shape", name, text) for name, text in self.shapes.items()]
        told += [("--values", name, text) for name, text in self.values.items()]
        return tuple(word for flag, name, text in told for word in (flag, f"{name}={text}"))

    @property
    def told(self) -> str:
        """The same for a reader, with the keys of the card."""
        words = [" ".join(self.options)] if self.options else []
        for name, told in (("model", self.card), ("signature", self.signature)):
            if told:
                text = yaml.safe_dump(dict(told), default_flow_style=True, width=1_000)
                words.append(f"{name}.yaml: {text.strip().removeprefix('{').removesuffix('}')}")
        return "; ".join(words)


def entries(only: Sequence[str] = ()) -> list[Entry]:
    """The entries of these names in the file's order, or all.

    Raises:
        ValueError: a name is unknown.
    """
    listed = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))
    if unknown := set(only) - set(listed):
        raise ValueError(f"unknown models {', '.join(sorted(unknown))}; of {', '.join(listed)}")
    return [Entry(name=name, **keys) for name, keys in listed.items() if not only or name in only]


class Files(NamedTuple):
    """Where a model lies."""

    plain: pathlib.Path
    """The file as the wheel has it."""
    given: pathlib.Path
    """What commands are given where all is told: the same file, or one with a signature beside it, or a
    folder with a `model.yaml`."""


def fetched(entry: Entry, kept: pathlib.Path) -> Files:
    """The files of a model, fetched or trained if they are not there yet.

    Args:
        entry: of the list.
        kept: the folder where files of all models are kept.

    Raises:
        CannotFetch: there is no wheel of that version, it lacks the file, or training failed.
    """
    file = kept / entry.name / f"{entry.name}{entry.suffix}"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        (_unpack if entry.wheel else _train)(entry, kept, file)
    if not entry.card and not entry.signature:
        return Files(file, file)
    folder = file.parent / "told"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / file.name).hardlink_to(file)
    if entry.signature:
        text = yaml.safe_dump(dict(entry.signature))
        (folder / f"{entry.name}.signature.yaml").write_text(text, encoding="utf-8")
        return Files(file, folder / file.name)
    keys = {"name": entry.name, "version": "1", "kind": "onnx", "file": file.name, **entry.card}
    (folder / "model.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    return Files(file, folder)


def _unpack(entry: Entry, kept: pathlib.Path, file: pathlib.Path) -> None:
    with zipfile.ZipFile(_wheel(entry.wheel, kept / "wheels")) as wheel:
        if entry.file not in wheel.namelist():
            raise CannotFetch(f"{entry.wheel} holds no {entry.file}")
        with wheel.open(entry.file) as source, file.open("wb") as copy:
            shutil.copyfileobj(source, copy)


@functools.cache
def _wheel(name: str, folder: pathlib.Path) -> pathlib.Path:
    project, _, version = name.partition("==")
    pattern = f"{project.replace('-', '_')}-{version}-*.whl"
    if not (found := list(folder.glob(pattern))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), name]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S
        )
        if not (found := list(folder.glob(pattern))):
            raise CannotFetch(f"`pip download {name}`: {done.stderr.strip().splitlines()[-1:]}")
    return found[0]


def _train(entry: Entry, kept: pathlib.Path, file: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept) as folder:
        made = pathlib.Path(folder) / entry.file
        done = subprocess.run(
            [sys.executable, str(FOLDER / "train.py"), str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_TIMEOUT_S,
        )
        if done.returncode:
            raise CannotFetch(f"train.py {entry.file}: {done.stderr.strip().splitlines()[-1]}")
        made.replace(file)
