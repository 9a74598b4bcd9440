"""Store of model profiles, in memory and in a file that saves measuring models again.

Not thread-safe; a second thread writes the file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import pathlib

from serving import __version__, models
from serving.deployment.dispatch.model_load import declared_inputs
from serving.deployment.profiler import ModelProfile
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state import record_schema
from serving.state.records import RecordKey, SqliteRecords
from serving.system import machine
from serving.system.fingerprint import Fingerprint, digest_of

log = logging.getLogger(__name__)

FILE = "profiles.db"
MAX_SAVED = 10_000


class ProfileStore:
    """Profiles by the key that `key_of` returns."""

    def __init__(self, records: SqliteRecords | None = None) -> None:
        """Read saved profiles from `records`, which `close` closes; None means memory only."""
        self._records = records
        self._profiles: dict[str, ModelProfile] = {}
        self._changes: dict[RecordKey, str | None] = {}
        self._writing = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "profiles")
        if records is not None:
            self._read(records)

    @classmethod
    def of_folder(cls, folder: pathlib.Path | None) -> ProfileStore:
        """Open the store in a folder; if it is None or cannot be used, in memory only."""
        if folder is None:
            return cls()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(SqliteRecords(folder / FILE))
        except (OSError, ServingError) as error:
            log.warning("profiles are not saved", extra={"error": str(error)})
            return cls()

    def of(self, key: str | None) -> ModelProfile | None:
        """Return the profile of a key, or None."""
        return None if key is None else self._profiles.get(key)

    async def keep(self, key: str | None, profile: ModelProfile) -> None:
        """Add a profile, and save it if there is a file."""
        if key is None:
            return
        self._profiles.pop(key, None)
        self._profiles[key] = profile
        self._changes[_row(key)] = json.dumps(profile.as_json())
        while len(self._profiles) > MAX_SAVED:
            oldest = next(iter(self._profiles))
            del self._profiles[oldest]
            self._changes[_row(oldest)] = None
        if self._records is not None:
            async with self._writing:  # changes made meanwhile are written together
                await self._write(self._records)

    async def _write(self, records: SqliteRecords) -> None:
        changes, self._changes = self._changes, {}
        if not changes:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, records.write, changes)
        except ServingError as error:
            log.warning("profiles are not saved", extra={"error": str(error)})

    def close(self) -> None:
        """Finish writing and close the file."""
        self._thread.shutdown()
        if self._records is not None:
            self._records.close()

    def _read(self, records: SqliteRecords) -> None:
        try:
            rows = records.load()
        except ServingError as error:
            log.warning("saved profiles cannot be read", extra={"error": str(error)})
            return
        problems = []
        for row, text in rows.items():
            try:
                self._profiles[row.name] = ModelProfile.from_json(record_schema.read(row, text))
            except ServingError as error:
                problems.append(str(error))
        if problems:
            log.warning(
                "saved profiles cannot be read and are left out",
                extra={"count": len(problems), "error": problems[0]},
            )


def key_of(
    spec: ModelSpec, settings: ServingSettings, identity: Fingerprint | None, software: str = ""
) -> str | None:
    """Return a key of all that a model's profile depends on, or None if not all of it is known.

    This call blocks. `identity` is the fingerprint of the weights; `software` is
    `Spawner.image_id`.
    """
    weights = spec.weights(settings.model.variant)
    if identity is None or str(weights) not in identity.stamps:  # code may use files next to it
        return None
    try:
        samples = None if spec.sample is None else digest_of(spec.sample)
    except OSError:
        return None
    replica, accelerator = settings.replica, settings.accelerator
    return json.dumps(
        {
            "content": identity.digest,
            "kind": spec.kind,
            "runtime": models.runtime_of(spec.kind),
            "machine": machine.cpu_digest(),
            "cores": os.cpu_count(),
            "version": __version__,
            "samples": samples,
            "spawner": replica.spawner,
            "image_id": software,
            "cpu": replica.cpu,
            "threads": replica.threads,
            "memory_mb": replica.memory_mb,
            "warmup_s": replica.warmup_s,
            "device": accelerator.device,
            "share": accelerator.share,
            "clock_mhz": accelerator.clock_mhz,
            "max_items": settings.batching.max_size,
            "inputs": declared_inputs(
                spec, settings.model, pad_to=settings.batching.pad_to
            ).as_json(),
        },
        separators=(",", ":"),
    )


def _row(key: str) -> RecordKey:
    return RecordKey(record_schema.PROFILE, key)
