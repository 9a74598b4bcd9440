"""Folder of one study; each file is written whole or not at all.

    runs/<study>/settings.yaml  environment.json  space.yaml  study.db  trials/<number>/requests.npz
                 verification/evaluations.json  verification/<role>.npz
                 verdict.json  confirmations.json  best.yaml  deploy.sh  report.html  log.jsonl  lock

One process runs a study at a time: `hold_lock`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

import yaml

from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem
from tuner.errors import StorageFailed, StudyBusy, UnknownStudy, UsageError

SETTINGS_FILE = "settings.yaml"
MARK, OLD_MARK = "# A study of Luthier, format 2.", "# A study of Luthier."
"""First line of `settings.yaml`; a folder without it is never deleted."""
RETRY_S = 0.05
FILES = frozenset(
    {
        "best.yaml",
        "compare.html",
        "compare.json",
        "compare.yaml",
        "confirmations.json",
        "deploy.sh",
        "engine.yaml",
        "scenario.yaml",
        "prices.yaml",
        "environment.json",
        "lock",
        "log.jsonl",
        "report.html",
        SETTINGS_FILE,
        "space.yaml",
        "study.db",
        "study.db-journal",
        "study.db-shm",
        "study.db-wal",
        "trials",
        "verdict.json",
        "verification",
    }
)


class _Written(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


@contextlib.contextmanager
def storage_errors(what: str, *, option: str = "--runs-dir") -> Iterator[None]:
    """Turn an OSError into a StorageFailed that suggests changing `option`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = f"{'free space or ' if is_full else ''}choose another {option}"
        raise StorageFailed(f"{what} cannot be written: {reason}; {advice}") from error


class RunFolder:
    """Paths and atomic writes in a study's folder; the constructor does not touch the disk."""

    def __init__(self, runs_dir: pathlib.Path, name: str) -> None:
        self.runs_dir = runs_dir
        self.name = name
        self.path = runs_dir / name
        self._is_new_place = False

    @property
    def database(self) -> pathlib.Path:
        """SQLite file of the default storage."""
        return self.path / "study.db"

    @property
    def log(self) -> pathlib.Path:
        """Event log, one JSON object per line."""
        return self.path / "log.jsonl"

    def exists(self) -> bool:
        """Whether anything exists at the path."""
        return os.path.lexists(self.path)

    def is_study(self) -> bool:
        """Whether the folder holds a study by Luthier."""
        return self._mark() in {MARK, OLD_MARK}

    def _mark(self) -> str | None:
        try:
            with (self.path / SETTINGS_FILE).open(encoding="utf-8") as file:
                return file.readline().rstrip("\n")
        except (OSError, UnicodeDecodeError):
            return None

    def check_writable(self) -> None:
        """Raise StorageFailed if the folder could not be created; leave nothing behind."""
        places = (self.runs_dir.absolute(), *self.runs_dir.absolute().parents)
        with storage_errors(f"study folder {self.path}"):
            existing = next(place for place in places if place.exists())
            tempfile.TemporaryDirectory(dir=existing).cleanup()

    def create(
        self,
        settings: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        settings_file: str = SETTINGS_FILE,
    ) -> None:
        """Create the folder with settings and environment; a failure leaves nothing behind."""
        self._is_new_place = not self.runs_dir.exists()
        with storage_errors(f"study folder {self.path}"):
            self.runs_dir.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
        try:
            self.write_json("environment.json", environment)
            text = yaml.dump(dict(settings), Dumper=_Written, sort_keys=False)
            self.write_text(settings_file, f"{MARK}\n{text}")
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what `create` made; ignore errors."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._is_new_place:
            with contextlib.suppress(OSError):
                self.runs_dir.rmdir()

    def delete(self) -> None:
        """Remove the study with all its files.

        Raises:
            UsageError: the folder is not a study folder, or holds other files.
            StorageFailed: the folder cannot be removed.
        """
        if not self.is_study():
            raise UsageError(
                f"{self.path} is not a study folder, so --overwrite does not delete it; "
                "choose another --study"
            )
        names = (entry.name for entry in self.path.iterdir())
        foreign = sorted(name for name in names if name.removesuffix(".partial") not in FILES)
        if foreign:
            raise UsageError(
                f"{self.path} holds files that do not belong to a study "
                f"({', '.join(foreign[:3])}), so --overwrite does not delete it; move them, "
                "or choose another --study"
            )
        with storage_errors(f"study folder {self.path}"):
            shutil.rmtree(self.path)

    def settings(self) -> dict[str, Any]:
        """Read `settings.yaml`, or raise UsageError if it is missing or broken."""
        path = self.path / SETTINGS_FILE
        try:
            data = bounded_yaml.read(path)
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {yaml_problem(error)}") from error
        except (ValueError, AttributeError) as error:  # 2001-99-99 looks like a date
            raise UsageError(
                f"{path} holds a value that cannot be read ({error}); quote it if it is a text"
            ) from error
        if not isinstance(data, dict):
            raise UsageError(
                f"{path} holds {type(data).__name__}, expected the settings of a study"
            )
        if self._mark() == OLD_MARK:
            raise UsageError(
                f"{self.path} is a study of format 1, whose names have changed; "
                f"convert it with: tune convert {shlex.quote(str(self.path))}"
            )
        return data

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file in the folder; return None if missing, raise UsageError if broken."""
        path = self.path / name
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        if not isinstance(data, dict):
            raise UsageError(f"{path} holds {type(data).__name__}, expected an object")
        return data

    def write_json(self, name: str, data: Mapping[str, Any]) -> pathlib.Path:
        """Write a JSON file atomically."""
        return self.write_text(name, json.dumps(data, indent=1, default=str) + "\n")

    def write_text(self, name: str, text: str) -> pathlib.Path:
        """Write a text file atomically."""
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> pathlib.Path:
        """Write a file atomically, or raise StorageFailed; `name` may contain folders."""
        path = self.path / name
        with storage_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".partial")
            try:
                partial.write_bytes(data)
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        return path

    @contextlib.contextmanager
    def hold_lock(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """Lock the study against other processes until the block or this process ends.

        Args:
            wait_s: how long to wait for another process.

        Raises:
            StudyBusy: another process runs the study.
            StorageFailed: the lock cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with storage_errors(str(self.path / "lock")):
                file = stack.enter_context((self.path / "lock").open("a+", encoding="ascii"))
                deadline_s = time.monotonic() + wait_s
                while not _is_locked(file):
                    if time.monotonic() >= deadline_s:
                        file.seek(0)
                        raise StudyBusy(self.name, file.read().strip() or None)
                    time.sleep(RETRY_S)
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
            yield


def _is_locked(file: IO[str]) -> bool:
    """Lock a file, and return whether no other process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def known_studies(runs_dir: pathlib.Path) -> tuple[str, ...]:
    """Return the names of the studies in a folder, sorted."""
    names = sorted(path.name for path in runs_dir.iterdir()) if runs_dir.is_dir() else ()
    return tuple(name for name in names if RunFolder(runs_dir, name).is_study())


def find(runs_dir: pathlib.Path, name: str) -> RunFolder:
    """Return a study's folder by name or path, or raise UnknownStudy."""
    given = pathlib.Path(name)
    candidates = [RunFolder(runs_dir, name)] if given.name == name else []
    candidates.append(RunFolder(given.resolve().parent, given.resolve().name))
    for folder in candidates:
        if folder.is_study():
            return folder
    raise UnknownStudy(name, known_studies(runs_dir), str(runs_dir))
