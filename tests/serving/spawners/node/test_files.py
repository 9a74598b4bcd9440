"""Files on their way to another machine: refused with the reason, and given up if nothing moves."""

import asyncio
import contextlib
import errno
import socket
import time

import pytest

from serving.spawners.node import files, link
from serving.spawners.node.artefacts import ArtefactError, ArtefactStore, ManifestMaker
from serving.spawners.node.link import Link

WAIT_S = 30.0
PIECE_BYTES = 1 << 18
PROGRESS_S = 0.6


class Store(ArtefactStore):
    """Does something with each piece before it takes it."""

    def __init__(self, folder, before):
        super().__init__(folder)
        self._before = before

    @contextlib.contextmanager
    def receive(self, digest):
        with super().receive(digest) as take:

            def prepared(piece):
                self._before()
                take(piece)

            yield prepared


@pytest.fixture(name="model")
def _model(tmp_path, monkeypatch):
    """A manifest of two contents of twelve pieces, and what is sent of it."""
    monkeypatch.setattr(link, "PIECE_BYTES", PIECE_BYTES)
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * (12 * PIECE_BYTES - 7))
    manifest = ManifestMaker().make([tmp_path / "a", tmp_path / "b"])
    return manifest, {entry.digest: path for path, entry in manifest.items()}


@contextlib.asynccontextmanager
async def _connection(store):
    """A gateway's side of a connection to a store; None reads nothing."""
    ours, theirs = [Link(*await link.open_unix(sock)) for sock in socket.socketpair()]
    receiving = asyncio.create_task(files.receive(theirs, store)) if store else None
    try:
        async with asyncio.timeout(WAIT_S):
            yield ours
    finally:
        ours.abort()
        theirs.abort()
        if receiving is not None:
            await receiving


async def test_a_refused_content_tells_why_and_the_next_is_understood(tmp_path, model):
    """All of it is read, also on a full disk."""
    manifest, paths = model

    def refuse():
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(tmp_path / "store", refuse)
    async with _connection(store) as opened:
        for digest, path in paths.items():
            with pytest.raises(ArtefactError, match=rf"{path}: .*No space left on device"):
                await files.send(opened, {digest: path})
    assert store.lacking(manifest) == set(paths)


async def test_a_file_may_take_any_time(tmp_path, model, monkeypatch):
    """As long as some of it is taken again and again."""
    monkeypatch.setattr(files, "PROGRESS_S", PROGRESS_S)
    manifest, paths = model
    store = Store(tmp_path / "store", lambda: time.sleep(PROGRESS_S / 10))
    async with _connection(store) as opened:
        await files.send(opened, paths)
    assert not store.lacking(manifest)


async def test_a_file_of_which_nothing_is_taken_is_given_up(model, monkeypatch):
    """The error names it."""
    monkeypatch.setattr(files, "PROGRESS_S", 0.05)
    _, paths = model
    async with _connection(None) as opened:
        with pytest.raises(ArtefactError, match=r"/a: the machine took no more of it within 0\.05"):
            await files.send(opened, paths)
