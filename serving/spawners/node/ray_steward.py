"""Steward: reserves places for replicas with Ray, and starts node agents there; alone imports Ray.

    python -m serving.spawners.node.ray_steward

It is a process of its own, as Ray installs signal handlers, cannot be forked, and ends its process
once the head has been away for long. On the control channel it receives first {"address",
"strategy", "agent"}, then {"do": "seat", "seat", "cpu", "memory_mb", "gpu"}, {"do": "give_back",
"seat"}, {"do": "avoid", "node"} of a machine that the gateway has lost or on which a start failed,
and {"do": "trust", "node"} of one on which a start has worked. It sends {"event": "ready"},
{"event": "seat", "seat", "node", "name", "host", "port", "certificate", "gpu"}, {"event":
"waiting", "seat", "text"}, {"event": "leaving", "node", "text"} and {"event": "failed", "text"};
the last, with "seat", says that this seat cannot be had.

Ray removes its reservations and ends its agents when the steward ends, which it does with the
channel.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from serving.spawners.node.node_agents import AGENT_S, Agent, NodeAgents
from serving.spawners.node.ray_cluster import UNREACHED, node_name, own_address
from serving.system.control_channel import Closed, ControlChannel, ControlledProcess
from serving.system.end_with_parent import ignore_requests_to_end
from serving.system.log_lines import log_lines

log = logging.getLogger(__name__)

_PLACED_S = 2.0
"""Seconds after which the gateway is told that a place is waited for."""
_PERIOD_S = 0.02
_WATCH_S = 1.0
_SHARE_OF_NODE = 1e-3


class AgentActor:
    """A node agent's parent on its machine."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        self._first = dict(first)
        self._child: ControlledProcess | None = None
        self._told: tuple[int, str | None] = (0, None)

    def address(self) -> tuple[str, int, str | None]:
        """Return host, port and certificate of the agent, which is started anew if it has ended."""
        host = ray.util.get_node_ip_address()
        if self._child is None or self._child.process.poll() is not None:
            child = ControlledProcess.start("serving.spawners.node.agent")
            child.send({**self._first, "host": host})
            told, _ = child.receive(timeout_s=AGENT_S)
            if "port" not in told:
                raise RuntimeError(str(told.get("error")))
            self._child, self._told = child, (int(told["port"]), told["certificate"])
        return host, *self._told


class GpuHolder:
    """Holds the GPU of a seat, as Ray assigns one to a process only."""

    def gpu(self) -> str:
        """Return its index or UUID."""
        return str(ray.get_gpu_ids()[0])


class Steward:
    """Reservations and agents of one gateway."""

    def __init__(self, control: ControlChannel, first: Mapping[str, Any]) -> None:
        self._control = control
        self._first = first
        self._told: queue.SimpleQueue[Mapping[str, object]] = queue.SimpleQueue()
        self._groups: dict[int, PlacementGroup] = {}
        self._holders: dict[int, Any] = {}
        self._nodes: dict[int, str] = {}
        """Machine of each seat that is reserved, or is being reserved there."""
        self._placing: set[int] = set()
        self._given_back: set[int] = set()
        self._agents = NodeAgents(self._start_agent, ended=ray.exceptions.ActorDiedError)
        self._lock = threading.Lock()

    def run(self) -> None:
        """Connect to Ray, and follow orders until the channel ends."""
        with contextlib.chdir(os.sep):  # Ray has its workers import from the working folder first
            ray.init(
                address=self._first["address"],
                _node_ip_address=own_address(self._first["address"]),
                namespace="luthier",
                log_to_driver=False,
                configure_logging=False,
            )
        # Ends Ray's thread that prints errors: it would keep a core busy while the head is away.
        ray._private.worker.global_worker.threads_stopped.set()  # noqa: SLF001
        self._control.send({"event": "ready", "version": ray.__version__})
        threading.Thread(target=self._watch, daemon=True).start()
        with contextlib.suppress(Closed):
            while True:
                for order in self._orders():
                    if order["do"] == "seat":
                        self._placing.add(order["seat"])
                        threading.Thread(target=self._seat, args=[order], daemon=True).start()
                    elif order["do"] == "avoid":
                        self._agents.avoid(order["node"])
                    elif order["do"] == "trust":
                        self._agents.trust(order["node"])
                    else:
                        self._give_back(order["seat"])
                while not self._told.empty():
                    self._control.send(self._told.get())

    def _orders(self) -> list[dict[str, Any]]:
        with contextlib.suppress(TimeoutError):
            return [self._control.receive(timeout_s=_PERIOD_S)[0], *self._control.receive_all()]
        return []

    # Seats

    def _seat(self, order: Mapping[str, Any]) -> None:
        seat = order["seat"]
        try:
            place = self._place(order)
            if place is None or not self._is_wanted(seat):
                self._remove(seat)
                return
            node, gpu = place
            host, port, certificate = self._agents.reach(node)
            nodes = ray.nodes()
            name = next(node_name(one, nodes) for one in nodes if one["NodeID"] == node)
        except Exception as error:  # Ray raises many kinds
            self._remove(seat)
            text = str(error).strip().splitlines() or [repr(error)]
            self._told.put({"event": "failed", "seat": seat, "text": text[-1]})
            return
        found = {"node": node, "name": name, "host": host, "port": port, "gpu": gpu}
        self._told.put({"event": "seat", "seat": seat, "certificate": certificate, **found})

    def _is_wanted(self, seat: int) -> bool:
        """Whether a seat that is reserved was not given back meanwhile; from now on, that removes it."""
        with self._lock:
            self._placing.discard(seat)
            return seat not in self._given_back

    def _place(self, order: Mapping[str, Any]) -> tuple[str, str | None] | None:
        """Reserve a bundle; return its node and GPU, or None if it was given back meanwhile."""
        seat = order["seat"]
        bundle = {"CPU": float(order["cpu"])}
        if order["memory_mb"] is not None:
            bundle["memory"] = float(order["memory_mb"] << 20)
        if order["gpu"]:
            bundle["GPU"] = float(order["gpu"])
        group = self._reserve(seat, bundle, tried := set[str]())
        begun_s, has_told = time.monotonic(), False
        while not group.wait(timeout_seconds=_WATCH_S):
            if seat in self._given_back:
                return None
            if seat in self._nodes:  # the machine is full, or is lost and Ray has not noticed yet
                with contextlib.suppress(Exception):
                    remove_placement_group(group)
                group = self._reserve(seat, bundle, tried)
            elif not has_told and time.monotonic() - begun_s > _PLACED_S:
                has_told = True
                wanted = ", ".join(f"{value:g} {name}" for name, value in bundle.items())
                text = f"no machine of the Ray cluster has room for a replica ({wanted})"
                self._told.put({"event": "waiting", "seat": seat, "text": text})
        table = placement_group_table(group)
        self._nodes[seat] = node = next(iter(table["bundles_to_node_id"].values()))
        if not order["gpu"]:
            return node, None
        holder = self._holders[seat] = (
            ray.remote(GpuHolder)
            .options(
                num_cpus=0,
                num_gpus=float(order["gpu"]),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group),
            )
            .remote()
        )
        return node, ray.get(holder.gpu.remote(), timeout=AGENT_S)

    def _reserve(self, seat: int, bundle: Mapping[str, float], tried: set[str]) -> PlacementGroup:
        """Ask for a bundle on the best machine that was not tried, else on any."""
        with self._lock:
            self._nodes.pop(seat, None)
            found = self._choose(bundle, tried)
            pin = {}
            if found is not None:
                node, resource = found
                tried.add(node)
                self._nodes[seat], pin = node, {resource: _SHARE_OF_NODE}
            group = self._groups[seat] = placement_group([{**bundle, **pin}], strategy="PACK")
        return group

    def _choose(self, bundle: Mapping[str, float], tried: set[str]) -> tuple[str, str] | None:
        """Return a machine with room, and the resource of its own; None if there is none."""
        taken = collections.Counter(self._nodes.values())
        sign = -1 if self._first["strategy"] == "pack" else 1
        able = [
            (self._agents.is_avoided(number), sign * taken[number], number, name)
            for node in ray.nodes()
            if node["Alive"]
            and (number := node["NodeID"]) not in tried
            and _has_room(node["Resources"], bundle, taken[number])
            for name in node["Resources"]
            if name.startswith("node:") and not name.startswith("node:__")
        ]
        return min(able)[2:] if able else None

    def _give_back(self, seat: int) -> None:
        with self._lock:
            self._given_back.add(seat)
            is_placing = seat in self._placing
        if not is_placing:
            self._remove(seat)

    def _remove(self, seat: int) -> None:
        with self._lock:
            self._placing.discard(seat)
            self._nodes.pop(seat, None)
            holder = self._holders.pop(seat, None)
            group = self._groups.pop(seat, None)
            self._given_back.discard(seat)
        with contextlib.suppress(Exception):  # the head is away: it is removed with the steward
            if holder is not None:
                ray.kill(holder)
            if group is not None:
                remove_placement_group(group)

    # Agents

    def _start_agent(self, node: str) -> Agent:
        actor = (
            ray.remote(AgentActor)
            .options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._first["agent"])
        )
        return lambda: actor.address.remote().future()

    def _watch(self) -> None:
        """Tell which machines are to be emptied, and see which lost ones are back."""
        told: set[str] = set()
        while True:
            time.sleep(_WATCH_S)
            with contextlib.suppress(Exception):  # the head is away
                self._agents.look()
                state = ray._private.state.state  # noqa: SLF001  there is no public way
                for node, deadline in state.get_draining_nodes().items():
                    if node not in told:
                        told.add(node)
                        text = f"Ray drains the machine (deadline {deadline})"
                        self._told.put({"event": "leaving", "node": node, "text": text})


def _has_room(resources: Mapping[str, float], bundle: Mapping[str, float], taken: int) -> bool:
    """Whether a machine with so many seats of this size has room, if nobody else uses it."""
    return all(resources.get(name, 0.0) >= (taken + 1) * value for name, value in bundle.items())


def main() -> None:
    """Run the steward."""
    log_lines(logging.WARNING)
    ignore_requests_to_end()
    control = ControlChannel.to_parent()
    with contextlib.suppress(Closed):
        first, _ = control.receive()
        try:
            Steward(control, first).run()
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            text = str(error).strip().splitlines() or [repr(error)]
            control.send({"event": "failed", "text": f"{text[0]}; {UNREACHED}"})


if __name__ == "__main__":
    main()
