"""Model files on other machines: each content is sent to a machine once, by its digest.

A manifest lists a model's files by absolute path with their digests, as the gateway has them. An
agent stores contents by digest, and lays a manifest out below a folder of its own by hard links.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from serving.errors import ServingError
from serving.system import fingerprint, process_identity

log = logging.getLogger(__name__)

MAX_FILES = 50_000
STORE_BYTES = 16 << 30
"""Maximum size of the contents that no model uses; the least recently used go first."""
_PART = ".part"
_REMOVAL_S = 0.02
"""Pause until a layout that is being removed is looked for again."""


class ArtefactError(ServingError):
    """A file cannot be read, or its content is not what was announced."""


class FileEntry(NamedTuple):
    """One file of a manifest."""

    digest: str
    """SHA-256 of its content."""
    size: int
    executable: bool = False


Manifest = Mapping[str, FileEntry]
"""Files by absolute path."""


class ManifestMaker:
    """Makes manifests, and reads each file's content once as long as it stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def make(self, paths: Iterable[pathlib.Path]) -> dict[str, FileEntry]:
        """Return the manifest of files and of folders with all that is in them; blocking.

        Raises:
            ArtefactError: a file cannot be read, or there are too many.
        """
        found: dict[str, FileEntry] = {}
        for path in paths:
            for file in _walk(path):
                try:
                    found[str(file)] = self._entry(file)
                except OSError as error:
                    raise ArtefactError(f"{file} cannot be read: {error.strerror}") from error
                if len(found) > MAX_FILES:
                    raise ArtefactError(
                        f"{path} has over {MAX_FILES} files, which a replica on another machine "
                        "may need; give the model a folder of its own"
                    )
        return found

    def _entry(self, file: pathlib.Path) -> FileEntry:
        seen = file.stat()
        key = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if key not in self._known:
            self._known[key] = fingerprint.digest_of(file)
        return FileEntry(self._known[key], seen.st_size, bool(seen.st_mode & stat.S_IXUSR))


class ArtefactLayout:
    """Folder with a model's files, which is kept as long as it is in use."""

    def __init__(self, folder: pathlib.Path, held: int) -> None:
        self.folder = folder
        self._held = held

    @classmethod
    def of(cls, folder: pathlib.Path) -> Self | None:
        """Use a folder, also beside other agents; None if it is not there, or is being removed."""
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(folder)
        except OSError:
            os.close(held)
            time.sleep(_REMOVAL_S)
            return None
        return cls(folder, held)

    def release(self) -> None:
        """End the use. May be called again."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class ArtefactStore:
    """Contents by digest, and manifests laid out from them. Calls block."""

    def __init__(self, folder: pathlib.Path, *, max_bytes: int = STORE_BYTES) -> None:
        """Use a folder that nobody else can change; agents of this user share it.

        Nobody else can enter it either. What is in it can be read by all, as containers, which
        are given single files of it, run as another user.
        """
        self._contents = folder / "contents"
        self._layouts = folder / "layouts"
        for each in (self._contents, self._layouts):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._max_bytes = max_bytes

    def lacking(self, manifest: Manifest) -> set[str]:
        """Return the digests whose content must be sent; mark the others as used."""
        lacking = set()
        for entry in manifest.values():
            try:
                os.utime(self._content(entry.digest))
            except FileNotFoundError:
                lacking.add(entry.digest)
        return lacking

    @contextlib.contextmanager
    def receive(self, digest: str) -> Iterator[Callable[[bytes], None]]:
        """Yield what takes a content's bytes, piece by piece; check and keep them at the end.

        Raises:
            ArtefactError: the content has another digest; nothing is kept.
        """
        path = self._content(digest)
        part = self._contents / f"{process_identity.this_process().new_name()}{_PART}"
        seen = hashlib.sha256()  # as it comes: reading it again would take seconds at the end
        try:
            with part.open("xb") as file:
                part.chmod(0o444)

                def take(piece: bytes) -> None:
                    file.write(piece)
                    seen.update(piece)

                yield take
            found = seen.hexdigest()
            if found != digest:
                raise ArtefactError(
                    f"a content arrived with the digest {found[:12]}, expected {digest[:12]}"
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def lay_out(self, manifest: Manifest) -> ArtefactLayout:
        """Return a folder with the manifest's files below it, at their absolute paths, in use.

        Raises:
            ArtefactError: a content is missing.
        """
        name = hashlib.sha256(repr(sorted(manifest.items())).encode()).hexdigest()[:32]
        folder = self._layouts / name
        while (layout := ArtefactLayout.of(folder)) is None:
            self._make(folder, manifest)
        return layout

    def _make(self, folder: pathlib.Path, manifest: Manifest) -> None:
        made = self._layouts / f"{process_identity.this_process().new_name()}{_PART}"
        try:
            made.mkdir()
            for path, entry in manifest.items():
                target = made / pathlib.Path(path).relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                self._link(entry, target)
            for inner, _, _ in os.walk(made):
                pathlib.Path(inner).chmod(0o755)  # regardless of the umask
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another agent was quicker
                    raise
        except OSError as error:
            raise ArtefactError(f"files cannot be laid out: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _link(self, entry: FileEntry, target: pathlib.Path) -> None:
        content = self._content(entry.digest)
        if entry.executable:  # a mode belongs to the content, so that it is a copy
            shutil.copyfile(content, target)
            target.chmod(0o555)
            return
        target.hardlink_to(content)

    def trim(self) -> None:
        """Remove what nobody uses, the longest unused first, beyond the maximum size."""
        for part in (*self._contents.glob(f"*{_PART}"), *self._layouts.glob(f"*{_PART}")):
            maker = process_identity.of(part.name.removesuffix(_PART))
            if maker is None or maker.is_gone():
                if part.is_dir():
                    shutil.rmtree(part, ignore_errors=True)  # another agent may be quicker
                else:
                    part.unlink(missing_ok=True)
        contents = _by_age(self._contents)
        surplus = sum(seen.st_size for _, seen in contents) - self._max_bytes
        if surplus <= 0:
            return
        for layout, _ in _by_age(self._layouts):
            _remove_unused(layout)
        for content, _ in contents:
            with contextlib.suppress(FileNotFoundError):  # another agent was quicker
                seen = content.stat()
                if surplus > 0 and seen.st_nlink == 1:
                    content.unlink()
                    surplus -= seen.st_size

    def _content(self, digest: str) -> pathlib.Path:
        if len(digest) != 64 or not digest.isalnum():
            raise ArtefactError(f"{digest!r:.80} is no SHA-256")
        return self._contents / digest


def _by_age(folder: pathlib.Path) -> list[tuple[pathlib.Path, os.stat_result]]:
    """Return what is whole in a folder."""
    found = []
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another agent was quicker
            if not each.name.endswith(_PART):
                found.append((each, each.stat()))
    return sorted(found, key=lambda pair: pair[1].st_mtime)


def _remove_unused(folder: pathlib.Path) -> None:
    """Remove a layout unless an agent uses it."""
    with contextlib.suppress(OSError):  # it is gone, or in use
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part = folder.with_name(f"{process_identity.this_process().new_name()}{_PART}")
            shutil.rmtree(folder.rename(part))  # under its name, the rest would look whole
        finally:
            os.close(held)


def as_json(manifest: Manifest) -> dict[str, list[object]]:
    """Return a manifest for a frame."""
    return {path: list(entry) for path, entry in manifest.items()}


def from_json(data: object) -> dict[str, FileEntry]:
    """Return the manifest of a frame.

    Raises:
        ArtefactError: it is malformed, or a path could leave its folder.
    """
    if not isinstance(data, dict) or len(data) > MAX_FILES:
        raise ArtefactError("a manifest is malformed")
    found: dict[str, FileEntry] = {}
    for path, values in data.items():
        try:
            digest, size, executable = values
            entry = FileEntry(str(digest), int(size), bool(executable))
        except (TypeError, ValueError) as error:
            raise ArtefactError(f"a manifest's entry is malformed: {values!r:.80}") from error
        parts = pathlib.PurePosixPath(path)
        if not parts.is_absolute() or ".." in parts.parts or "\0" in path:
            raise ArtefactError(f"a manifest holds {path!r:.80}, expected an absolute path")
        found[path] = entry
    return found


def _walk(path: pathlib.Path) -> Iterator[pathlib.Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if process_identity.of(name) is None]
        for name in names:
            file = pathlib.Path(folder, name)
            if file.is_file():  # no sockets, and no broken links
                yield file
