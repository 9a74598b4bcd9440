"""Machines of a Ray cluster that measure for a study: one actor on each, which holds all its cores.

The only module of the tuner that imports Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from serving.spawners.node.ray_cluster import UNREACHED, check_token, node_name, own_address
from tuner.errors import NodeLost, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.study.nodes.measuring_node import MeasuringNode
from tuner.values.configuration import Configuration

# A head that is away does not end the study's process: the machines measure meanwhile.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # of connecting, each of some 40 s
try:
    import ray
    from ray.exceptions import (
        AuthenticationError,
        GetTimeoutError,
        RayActorError,
        RayError,
        RayTaskError,
    )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:  # pragma: no cover - needs an environment without Ray
    raise UsageError(f"--workers needs Ray: pip install 'luthier[ray]' ({error})") from error

_log = logging.getLogger(__name__)

PLACED_S = 60.0
"""Seconds in which a machine must give all its cores: others may use it."""
CALL_S = 900.0
"""Seconds beyond the study's longest time after which a call that has not ended loses its machine.

For one that hangs: how long an evaluation or a round takes depends on the load, and a machine that
ends or is silent is noticed by Ray itself.
"""
CLOSE_S = 10.0
"""Seconds in which a machine ends its processes in order."""


class RayNode:
    """One machine of the cluster (`fleet.StudyNode`)."""

    def __init__(self, name: str, actor: Any, *, is_here: bool, within_s: float) -> None:
        """Take an actor; a call that takes longer than `within_s` shows that it is lost."""
        self.name = name
        self.is_here = is_here
        self.actor = actor
        self._within_s = within_s

    def open(self, first: Configuration) -> Mapping[str, Any]:
        """See `MeasuringNode.open`."""
        found: Mapping[str, Any] = self.ask("open", dict(first))
        return found

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """See `MeasuringNode.evaluate`."""
        return self._named(self.ask("evaluate", dict(configuration), race))

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """See `MeasuringNode.evaluate_at`."""
        return self._named(self.ask("evaluate_at", dict(configuration), load, seconds))

    def open_rounds(self, arms: Mapping[str, Configuration], *, latency_s: float) -> Sequence[str]:
        """See `MeasuringNode.open_rounds`."""
        plain = {role: dict(one) for role, one in arms.items()}
        said: Sequence[str] = self.ask("open_rounds", plain, latency_s)
        return said

    def round(self, arms: Sequence[str], *, stream: int) -> Sequence[tuple[str, Evaluation]]:
        """See `MeasuringNode.round`."""
        return [(role, self._named(one)) for role, one in self.ask("round", tuple(arms), stream)]

    def _named(self, evaluation: Evaluation) -> Evaluation:
        return dataclasses.replace(evaluation, node=self.name)

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the machine's `MeasuringNode`; return what it returns.

        Raises:
            NodeLost: the machine does not answer, Ray does not bring the answer, or the method fails.
        """
        within_s = self._within_s
        try:
            return ray.get(getattr(self.actor, method).remote(*arguments), timeout=within_s)
        except GetTimeoutError:
            raise NodeLost(self.name, f"it did not answer within {within_s:g} s") from None
        except RayTaskError as error:
            _log.warning("call failed", extra={"fields": {"node": self.name, "error": str(error)}})
            raise NodeLost(self.name, _first_line(error.cause)) from error
        except RayActorError as error:
            _log.warning("actor lost", extra={"fields": {"node": self.name, "error": str(error)}})
            raise NodeLost(self.name, "Ray does not reach what measures there") from error
        except RayError as error:
            raise NodeLost(self.name, f"Ray fails: {_first_line(error)}") from error


class RayFleet:
    """Machines of a cluster, each held as a whole until the end of the context."""

    def __init__(self, nodes: list[RayNode]) -> None:
        self.nodes = nodes
        """Machines in use; whoever finds one lost removes it."""
        self._all = tuple(nodes)

    @classmethod
    def open(
        cls,
        workers: str,
        settings: StudySettings,
        kept: Mapping[str, str],
        *,
        kind: type[MeasuringNode] = MeasuringNode,
        goes_on: bool = False,
    ) -> Self:
        """Connect to Ray and take machines.

        Args:
            workers: how many, `auto` for all, or `ray://HOST:PORT` for all of the cluster there.
            settings: the study's; files of the model and of requests must be on all machines.
            kept: texts of the files that are sent (`preparation.files_to_keep`).
            kind: what runs on each.
            goes_on: whether fewer machines will do.

        Raises:
            UsageError: Ray cannot be reached, or there are too few machines.
        """
        check_token()
        # Ray prints what happens in the cluster to standard output, which is the command's own.
        ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - no public way
        address = workers.removeprefix("ray://") if workers.startswith("ray://") else "auto"
        try:
            # Ray has its workers import from the working folder first: not from a checkout there.
            with _own_signal_handlers(), contextlib.chdir(os.sep):
                ray.init(
                    address=address,
                    _node_ip_address=own_address(address),
                    namespace="luthier",
                    log_to_driver=False,
                    configure_logging=False,
                )
        except (AuthenticationError, ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"--workers {workers}: Ray cannot be reached: {_first_line(error)}; {UNREACHED}"
            ) from error
        # Ends Ray's thread that prints errors: it would keep a core busy while the head is away.
        ray._private.worker.global_worker.threads_stopped.set()  # noqa: SLF001
        try:
            return cls(_take(workers, settings, kept, kind, goes_on=goes_on))
        except BaseException:
            ray.shutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """End all processes on the machines, and give them back."""
        ending = [one.actor.close.remote() for one in self._all]
        with contextlib.suppress(Exception):  # what is killed ends as well, a moment later
            ray.wait(ending, num_returns=len(ending), timeout=CLOSE_S)
        for one in self._all:
            with contextlib.suppress(Exception):  # it has ended
                ray.kill(one.actor)
        ray.shutdown()


def _take(
    workers: str,
    settings: StudySettings,
    kept: Mapping[str, str],
    kind: type[MeasuringNode],
    *,
    goes_on: bool,
) -> list[RayNode]:
    """Hold all cores of so many machines, the first that give them."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    count = int(workers) if workers.isdecimal() else len(alive)
    if goes_on:
        count = min(count, len(alive))
    if not 1 <= count <= len(alive):
        raise UsageError(
            f"--workers {workers}: the Ray cluster has {len(alive)} machines with cores; start Ray "
            "on more (docs/machines.md), or use fewer"
        )
    actor = ray.remote(kind)
    plain = dataclasses.replace(settings, store=StoreSettings()).as_nested()  # without a password
    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for node in alive:
        where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = {"num_cpus": node["Resources"]["CPU"], "scheduling_strategy": where}
        nodes.append(
            RayNode(
                node_name(node, alive),
                actor.options(**options).remote(plain, dict(kept)),
                is_here=node["NodeID"] == here,
                within_s=CALL_S + settings.search.max_time_s,
            )
        )
    placed = {node.actor.__ray_ready__.remote(): node for node in nodes}
    ready, late = ray.wait(list(placed), num_returns=count, timeout=PLACED_S)
    if len(ready) < count:
        raise UsageError(
            f"--workers {workers}: {len(ready)} of {len(alive)} machines gave all their cores within "
            f"{PLACED_S:g} s: others use {', '.join(placed[one].name for one in late)}, or Luthier "
            "is not installed there"
        )
    for one in late:
        ray.kill(placed[one].actor)
    for one in ready:
        try:
            ray.get(one)
        except RayError as error:
            lines = str(error).strip().splitlines()
            name = placed[one].name
            raise UsageError(f"--workers {workers}: on the machine {name}: {lines[-1]}") from error
    return [placed[one] for one in ready]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process' handlers of signals, which Ray replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
