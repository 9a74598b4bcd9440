"""Folder of a benchmark table.

    table.yaml          the header: model, workload, engine, host, space, default
    evaluations.csv     one row per measured block with knobs, evaluation and metrics; a single row
                        without a block for a failed evaluation
    histograms.csv      one row per measured evaluation: latencies in buckets 1 % wide

Rows are written as evaluations end, so a kill loses only the running one; finally they are
compressed.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import fcntl
import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from serving.system import bounded_yaml, user_files
from serving.system.bounded_yaml import yaml_problem
from tuner.errors import InvalidTable, UsageError
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation, TableHeader
from tuner.lab.tables.table_rows import BUCKETS, COLUMNS, LATER, evaluation_of, rows_of
from tuner.store.run_folder import storage_errors
from tuner.values.configuration import Configuration
from tuner.values.histogram import LatencyHistogram

HEAD, EVALUATIONS, HISTOGRAMS = "table.yaml", "evaluations.csv", "histograms.csv"
VERSION = 2
OLD_FILES = {HEAD: "surface.yaml", EVALUATIONS: "cells.csv"}
OLD_NAMES = {"home": "spawner", "launch": "evaluation", "foreign_cpu_s": "neighbour_cpu_s"}
"""Keys and columns of format 1, with their present names; reading a table converts them."""
MAX_BYTES = 256 << 20


def read(folder: pathlib.Path) -> BenchmarkTable:
    """Read a finished or unfinished table, or raise InvalidTable."""
    head = _head(folder)
    knobs = tuple(head.default)
    needed = [name for name in COLUMNS if name not in LATER]
    rows = _rows(folder, EVALUATIONS, (*knobs, *needed))
    buckets = {
        row["evaluation"]: _histogram(folder, row) for row in _rows(folder, HISTOGRAMS, BUCKETS)
    }
    by_evaluation: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_evaluation.setdefault(row["evaluation"], []).append(row)
    kinds = {name: type(value) for name, value in head.default.items()}
    evaluations = []
    for number, parts in by_evaluation.items():
        if parts[0]["status"] == "ok" and number not in buckets:
            continue  # killed between writing the two files
        try:
            evaluations.append(evaluation_of(parts, kinds, buckets.get(number)))
        except (ValueError, KeyError) as error:
            raise InvalidTable(
                str(folder / EVALUATIONS), f"evaluation {number}", f"cannot be read: {error}"
            ) from error
    return BenchmarkTable(head=head, evaluations=tuple(evaluations))


def is_table(folder: pathlib.Path) -> bool:
    """Whether the folder is a benchmark table, of any format."""
    return _place(folder, HEAD).is_file()


class TableFolder(contextlib.ExitStack):
    """Folder of a recording, as a context manager for one process at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.path = path
        self._cells: Any = None
        self._histograms: Any = None

    def exists(self) -> bool:
        """Whether the folder holds a recording."""
        return (self.path / HEAD).is_file()

    def begin(self, head: TableHeader) -> None:
        """Create or resume the folder and open its files, or raise UsageError if it is in use."""
        with storage_errors(f"benchmark table {self.path}", option="--out"):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.enter_context((self.path / "lock").open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"--out {self.path} is in use by another `tune record`: wait until it "
                    "ends, or use another folder"
                ) from None
            self.write_head(head)
            for name in (EVALUATIONS, HISTOGRAMS):
                _unpack(self.path / name)
                _cut(self.path / name)
            self._cells = self._open(EVALUATIONS, (*head.default, *COLUMNS))
            self._histograms = self._open(HISTOGRAMS, BUCKETS)

    def write_head(self, head: TableHeader) -> None:
        """Replace `table.yaml`."""
        text = yaml.safe_dump(_plain(head), sort_keys=False, allow_unicode=True, width=100)
        _replace(self.path / HEAD, text.encode())

    def append(self, evaluation: RecordedEvaluation) -> None:
        """Write an evaluation, with its rows in `evaluations.csv` last."""
        with storage_errors(f"benchmark table {self.path}", option="--out"):
            if evaluation.histogram is not None:
                _write(self._histograms, [(str(evaluation.number), *evaluation.histogram.text())])
            _write(self._cells, rows_of(evaluation))

    def finish(self, head: TableHeader) -> None:
        """Compress the rows and mark the header as finished."""
        with storage_errors(f"benchmark table {self.path}", option="--out"):
            self._cells.close()
            self._histograms.close()
            for name in (EVALUATIONS, HISTOGRAMS):
                plain = self.path / name
                packed = gzip.compress(plain.read_bytes(), 9, mtime=0)
                _replace(plain.with_name(name + ".gz"), packed)
                plain.unlink()
            self.write_head(dataclasses.replace(head, is_finished=True))
            (self.path / "lock").unlink(missing_ok=True)

    def _open(self, name: str, columns: Sequence[str]) -> Any:
        path = self.path / name
        is_new = not path.exists() or not path.stat().st_size
        file = self.enter_context(path.open("a", encoding="utf-8", newline=""))
        if is_new:
            _write(file, [columns])
        return file


def _plain(head: TableHeader) -> dict[str, Any]:
    data: dict[str, Any] = {"version": VERSION}
    for field in dataclasses.fields(head):
        value = getattr(head, field.name)
        if field.name == "space":
            data |= {
                key: value[key] for key in ("knobs", "constraints", "equivalence") if key in value
            }
        elif isinstance(value, Mapping):
            data[field.name] = dict(value)
        elif isinstance(value, tuple):
            data[field.name] = list(value)
        else:
            data[field.name] = value
    return data


def _place(folder: pathlib.Path, name: str, suffix: str = "") -> pathlib.Path:
    path, old = folder / (name + suffix), folder / (OLD_FILES.get(name, name) + suffix)
    return old if old.exists() and not os.path.lexists(path) else path


def _head(folder: pathlib.Path) -> TableHeader:
    path = _place(folder, HEAD)
    try:
        data = bounded_yaml.read(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidTable(
            str(path), "", f"{reason}; expected a folder that `tune record` wrote"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidTable(str(path), "", f"no YAML: {yaml_problem(error)}") from error
    if not isinstance(data, dict) or data.get("version") not in {1, VERSION}:
        raise InvalidTable(
            str(path), "version", f"expected 1 or {VERSION}, the versions of benchmark tables"
        )
    data = {OLD_NAMES.get(key, key): value for key, value in data.items()}
    space = {"name": data.get("model")}
    space |= {key: data[key] for key in ("knobs", "constraints", "equivalence") if key in data}
    try:
        return TableHeader(
            **{
                field.name: _as(field, data)
                for field in dataclasses.fields(TableHeader)
                if field.name != "space"
                and (field.name in data or field.default is dataclasses.MISSING)
            },
            space=space,
        )
    except (KeyError, TypeError) as error:
        raise InvalidTable(
            str(path), str(error).strip("'"), "is missing or has no such value"
        ) from error


def _as(field: dataclasses.Field[Any], data: Mapping[str, Any]) -> Any:
    value = data[field.name]
    if field.name == "default":
        return Configuration(value)
    return tuple(value) if field.name == "notes" else value


def _rows(folder: pathlib.Path, name: str, columns: Sequence[str]) -> list[dict[str, str]]:
    path = _place(folder, name)
    is_plain = path.exists()
    path = path if is_plain else _place(folder, name, ".gz")
    try:
        data = user_files.read(path, max_bytes=MAX_BYTES) if is_plain else _read_packed(path)
        text = data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidTable(str(path), "", f"cannot be read: {reason}") from error
    whole = text[: text.rfind("\n") + 1]  # a kill may have truncated the last row
    reader = csv.DictReader(io.StringIO(whole))
    names = [OLD_NAMES.get(column, column) for column in reader.fieldnames or ()]
    reader.fieldnames = names
    lacking = [column for column in columns if column not in names]
    if lacking:
        raise InvalidTable(str(path), lacking[0], "this column is missing")
    return list(reader)


def _read_packed(path: pathlib.Path) -> bytes:
    with (
        user_files.open_file(path) as packed,
        gzip.open(packed) as rows,
    ):
        data = rows.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MiB")
    return data


def _histogram(folder: pathlib.Path, row: Mapping[str, str]) -> LatencyHistogram:
    try:
        return LatencyHistogram.parse(row["first"], row["counts"])
    except ValueError as error:
        where = f"evaluation {row['evaluation']}"
        raise InvalidTable(str(folder / HISTOGRAMS), where, str(error)) from error


def _write(file: Any, rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    file.write(text.getvalue())
    file.flush()


def _replace(path: pathlib.Path, data: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.replace(path)


def _unpack(path: pathlib.Path) -> None:
    packed = path.with_name(path.name + ".gz")
    if packed.exists() and not path.exists():
        _replace(path, gzip.decompress(packed.read_bytes()))
        packed.unlink()


def _cut(path: pathlib.Path) -> None:
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(path, len(whole))
