"""Session of a node agent: one gateway's control connection, and the replicas that end with it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from serving.errors import NotReady, ServingError
from serving.settings.replica import AcceleratorSettings
from serving.spawners.base_replica import BaseReplica
from serving.spawners.docker.spawner import DockerSpawner
from serving.spawners.node import artefacts, link, messages
from serving.spawners.node.artefacts import ArtefactLayout, ArtefactStore
from serving.spawners.node.link import Link, Refused
from serving.spawners.process.spawner import ProcessSpawner
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_USAGE_PERIOD_S = 0.5
_MAX_START_S = 3600.0

AnySpawner = ProcessSpawner | DockerSpawner


class AgentSession:
    """One control connection of a gateway, with its replicas; they end together."""

    def __init__(self, channel: Link, make: Callable[[], AnySpawner], store: ArtefactStore) -> None:
        self._link = channel
        self._make = make
        self._store = store
        self._spawners: dict[str, AnySpawner] = {}
        self._opening = asyncio.Lock()
        self._replicas: dict[int, BaseReplica] = {}
        self._starts: dict[int, asyncio.Task[BaseReplica]] = {}
        self._tickets: dict[str, int] = {}
        self._layouts: dict[str, list[ArtefactLayout]] = {}
        """Folders in use by path, once for each use."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the gateway until the connection ends, then end all replicas."""
        usage = asyncio.create_task(self._report_usage(), name="report usage")
        try:
            while True:
                message, _ = await self._link.receive()
                self._begin(self._answer(message))
        except (ConnectionError, Refused) as error:
            log.info("the gateway's connection has ended", extra={"error": str(error)})
        finally:
            usage.cancel()
            await self.close()

    async def close(self) -> None:
        """End the connection and all replicas."""
        self._link.abort()
        self._tickets.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(spawner.close() for spawner in self._spawners.values()))
        self._spawners.clear()
        for layout in itertools.chain.from_iterable(self._layouts.values()):
            layout.release()
        self._layouts.clear()

    def take(self, ticket: str) -> BaseReplica | None:
        """Return the replica that a ticket is for, once."""
        worker = self._tickets.pop(ticket, None)
        return None if worker is None else self._replicas.get(worker)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests

    async def _answer(self, message: Mapping[str, Any]) -> None:
        handlers = {
            "ping": self._ping,
            "open": self._open,
            "lacking": self._lacking,
            "lay": self._lay,
            "release": self._release,
            "start": self._start,
            "limit": self._limit,
            "kill": self._kill,
        }
        reply: dict[str, object] = {"id": message.get("id")}
        try:
            handler = handlers[message["do"]]
            reply["ok"] = await handler(message)
        except ServingError as error:
            reply["error"] = messages.error_as_json(error)
        except (KeyError, TypeError, ValueError) as error:
            reply["error"] = messages.error_as_json(Refused(f"a malformed request: {error!r}"))
        except OSError as error:
            reply["error"] = messages.error_as_json(Refused(f"the machine refuses: {error}"))
        self._link.send(reply)

    async def _ping(self, _message: Mapping[str, Any]) -> dict[str, Any]:
        return {"monotonic_ns": time.monotonic_ns()}

    async def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        kind = str(message["kind"])
        async with self._opening:
            if kind not in self._spawners:
                spawner = self._make()
                try:
                    await spawner.open(kind)
                except BaseException:
                    await spawner.close()
                    raise
                self._spawners[kind] = spawner
        spawner = self._spawners[kind]
        return {"limits": spawner.limits_text, "image": spawner.image_id}

    async def _lacking(self, message: Mapping[str, Any]) -> dict[str, Any]:
        manifest = artefacts.from_json(message["files"])
        await run_in_daemon_thread(self._store.trim)
        lacking = await run_in_daemon_thread(self._store.lacking, manifest)
        return {"lacking": sorted(lacking)}

    async def _lay(self, message: Mapping[str, Any]) -> dict[str, Any]:
        manifest = artefacts.from_json(message["files"])
        layout = await run_in_daemon_thread(self._store.lay_out, manifest)
        root = str(layout.folder)
        self._layouts.setdefault(root, []).append(layout)
        return {"root": root}

    async def _release(self, message: Mapping[str, Any]) -> dict[str, Any]:
        root = str(message["root"])
        self._layouts[root].pop().release()
        if not self._layouts[root]:
            del self._layouts[root]
        return {}

    async def _start(self, message: Mapping[str, Any]) -> dict[str, Any]:
        worker, spawner = int(message["worker"]), self._spawners[message["kind"]]
        starting = self._starts[worker] = asyncio.ensure_future(
            spawner.start(
                worker,
                cpu=message["cpu"],
                memory_mb=message["memory_mb"],
                ready_timeout_s=min(_MAX_START_S, float(message["ready_timeout_s"])),
                accelerator=AcceleratorSettings(**message["accelerator"]),
                spec=messages.spec_from_json(message["spec"]),
                gpu=message["gpu"],
            )
        )
        try:
            replica = await starting
        except asyncio.CancelledError:
            if not starting.cancelled():
                raise
            raise NotReady("the replica is no longer wanted") from None
        finally:
            del self._starts[worker]
        self._replicas[worker] = replica
        self._begin(self._follow(replica))
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = worker
        self._begin(self._expire(ticket, replica))
        return {"pid": replica.pid, "features": replica.features, "ticket": ticket}

    async def _limit(self, message: Mapping[str, Any]) -> dict[str, Any]:
        replica = self._replicas.get(int(message["worker"]))
        if replica is not None:
            await replica.set_limits(cpu=message["cpu"], memory_mb=message["memory_mb"])
            return {"usage": messages.usage_as_json(replica.usage())}
        return {"usage": None}

    async def _kill(self, message: Mapping[str, Any]) -> dict[str, Any]:
        replica = self._replicas.get(int(message["worker"]))
        if replica is not None:
            replica.kill(asked=bool(message["asked"]))
        elif (starting := self._starts.get(int(message["worker"]))) is not None:
            starting.cancel()
        return {}

    # Events

    async def _follow(self, replica: BaseReplica) -> None:
        ended = await asyncio.shield(replica.ended)
        del self._replicas[replica.worker]
        event = {"event": "ended", "worker": replica.worker, "reason": ended.reason}
        usage = messages.usage_as_json(replica.usage())
        self._link.send({**event, "text": ended.text, "usage": usage})

    async def _expire(self, ticket: str, replica: BaseReplica) -> None:
        await asyncio.sleep(2 * link.CONNECT_S)
        if self._tickets.pop(ticket, None) is not None:
            log.warning("nobody came for a replica", extra={"worker": replica.worker})
            replica.abandon()

    async def _report_usage(self) -> None:
        while True:
            await asyncio.sleep(_USAGE_PERIOD_S)
            if self._replicas:
                usage = {
                    str(worker): messages.usage_as_json(replica.usage())
                    for worker, replica in self._replicas.items()
                }
                self._link.send({"event": "usage", "usage": usage})
