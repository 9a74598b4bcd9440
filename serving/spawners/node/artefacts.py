"""Model files on other machines: each content is sent to a machine once, by its digest.

A manifest lists a model's files by absolute path with their digests, as the gateway has them. An
agent stores contents by digest, and lays a manifest out below a folder of its own by hard links.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from serving.errors import ServingError
from serving.system import fingerprint, process_identity

log = logging.getLogger(__name__)

MAX_FILES = 50_000
STORE_BYTES = 16 << 30
"""Maximum size of the contents that no model uses; the least recently used go first."""
_PART = ".part"


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


class ArtefactStore:
    """Contents by digest, and manifests laid out from them. Calls block."""

    def __init__(self, folder: pathlib.Path, *, max_bytes: int = STORE_BYTES) -> None:
        """Use a folder that nobody else can change; agents of this user share it."""
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
    def receive(self, digest: str) -> Iterator[BinaryIO]:
        """Yield a file for a content's bytes; check and keep them at the end.

        Raises:
            ArtefactError: the content has another digest; nothing is kept.
        """
        path = self._content(digest)
        part = path.with_name(f"{digest}-{secrets.token_hex(4)}{_PART}")
        try:
            with part.open("xb") as file:
                part.chmod(0o400)
                yield file
            found = fingerprint.digest_of(part)
            if found != digest:
                raise ArtefactError(
                    f"a content arrived with the digest {found[:12]}, expected {digest[:12]}"
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def lay_out(self, manifest: Manifest) -> pathlib.Path:
        """Return a folder with the manifest's files below it, at their absolute paths.

        Raises:
            ArtefactError: a content is missing.
        """
        name = hashlib.sha256(repr(sorted(manifest.items())).encode()).hexdigest()[:32]
        folder = self._layouts / name
        if folder.is_dir():
            os.utime(folder)
            return folder
        made = self._layouts / f"{process_identity.this_process().new_name()}{_PART}"
        try:
            for path, entry in manifest.items():
                target = made / pathlib.Path(path).relative_to("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                self._link(entry, target)
            with contextlib.suppress(OSError):  # another agent was quicker
                made.rename(folder)
        except OSError as error:
            raise ArtefactError(f"files cannot be laid out: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return folder

    def _link(self, entry: FileEntry, target: pathlib.Path) -> None:
        content = self._content(entry.digest)
        if entry.executable:  # a mode belongs to the content, so that it is a copy
            shutil.copyfile(content, target)
            target.chmod(0o500)
            return
        target.hardlink_to(content)

    def trim(self, used: Collection[pathlib.Path]) -> None:
        """Remove the layouts and contents that were used longest ago, beyond the maximum size."""
        layouts = sorted(
            (each for each in self._layouts.iterdir() if each not in used),
            key=lambda each: each.stat().st_mtime,
        )
        contents = [(each, each.stat()) for each in self._contents.iterdir()]
        surplus = sum(seen.st_size for _, seen in contents) - self._max_bytes
        if surplus <= 0:
            return
        for layout in layouts:
            shutil.rmtree(layout, ignore_errors=True)
        for content, seen in sorted(contents, key=lambda pair: pair[1].st_mtime):
            if surplus <= 0:
                return
            if content.stat().st_nlink == 1 and not content.name.endswith(_PART):
                content.unlink(missing_ok=True)
                surplus -= seen.st_size

    def _content(self, digest: str) -> pathlib.Path:
        if len(digest) != 64 or not digest.isalnum():
            raise ArtefactError(f"{digest!r:.80} is no SHA-256")
        return self._contents / digest


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
