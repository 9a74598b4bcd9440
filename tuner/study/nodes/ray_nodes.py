"""Machines of a Ray cluster that measure for a study: one actor on each, which holds all its cores.

The only module of the tuner that imports Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from serving.spawners.node.ray_cluster import check_token
from tuner.errors import NodeLost, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.settings.study import StudySettings
from tuner.study.nodes.measuring_node import MeasuringNode
from tuner.values.configuration import Configuration

os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:  # pragma: no cover - needs an environment without Ray
    raise UsageError(f"--workers needs Ray: pip install 'luthier[ray]' ({error})") from error

PLACED_S = 60.0
"""Seconds in which a machine must give all its cores: others may use it."""
CALL_S = 900.0
"""Seconds after which a machine whose call has not ended is lost."""


class RayNode:
    """One machine of the cluster (`fleet.Node`)."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    def open(self, first: Configuration) -> Mapping[str, Any]:
        """See `MeasuringNode.open`."""
        found: Mapping[str, Any] = self._call("open", dict(first))
        return found

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """See `MeasuringNode.evaluate`."""
        return self._named(self._call("evaluate", dict(configuration), race))

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """See `MeasuringNode.evaluate_at`."""
        return self._named(self._call("evaluate_at", dict(configuration), load, seconds))

    def open_rounds(self, arms: Mapping[str, Configuration], *, latency_s: float) -> Sequence[str]:
        """See `MeasuringNode.open_rounds`."""
        plain = {role: dict(one) for role, one in arms.items()}
        said: Sequence[str] = self._call("open_rounds", plain, latency_s)
        return said

    def round(self, arms: Sequence[str], *, stream: int) -> Sequence[tuple[str, Evaluation]]:
        """See `MeasuringNode.round`."""
        return [(role, self._named(one)) for role, one in self._call("round", tuple(arms), stream)]

    def close_rounds(self) -> None:
        """See `MeasuringNode.close_rounds`."""
        self._call("close_rounds")

    def close(self) -> None:
        """End the machine's processes."""
        with contextlib.suppress(NodeLost):
            self._call("close")
        with contextlib.suppress(Exception):  # it has ended
            ray.kill(self._actor)

    def _named(self, evaluation: Evaluation) -> Evaluation:
        return dataclasses.replace(evaluation, node=self.name)

    def _call(self, method: str, *arguments: object, within_s: float = CALL_S) -> Any:
        try:
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=within_s)
        except GetTimeoutError:
            raise NodeLost(self.name, f"it did not answer within {within_s:g} s") from None
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            raise NodeLost(self.name, str(error).strip().splitlines()[0]) from error


class RayFleet:
    """Machines of a cluster, each held as a whole until `close`."""

    def __init__(self, nodes: Sequence[RayNode]) -> None:
        self.nodes = nodes

    @classmethod
    def open(cls, workers: str, settings: StudySettings) -> Self:
        """Connect to Ray and take machines.

        Args:
            workers: how many, `auto` for all, or `ray://HOST:PORT` for all of the cluster there.
            settings: the study's, without names of files that only this machine has.

        Raises:
            UsageError: Ray cannot be reached, or there are too few machines.
        """
        check_token()
        address = workers.removeprefix("ray://") if workers.startswith("ray://") else "auto"
        try:
            ray.init(
                address=address,
                namespace="luthier",
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            text = str(error).strip().splitlines()[0]
            raise UsageError(f"--workers {workers}: Ray cannot be reached: {text}") from error
        alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        count = int(workers) if workers.isdecimal() else len(alive)
        if not 1 <= count <= len(alive):
            ray.shutdown()
            raise UsageError(f"--workers {workers}: the Ray cluster has {len(alive)} machines")
        kind = ray.remote(MeasuringNode)
        nodes = [
            RayNode(
                f"{node['NodeManagerHostname']}/{node['NodeManagerAddress']}",
                kind.options(
                    num_cpus=node["Resources"]["CPU"],
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                ).remote(settings.as_nested()),
            )
            for node in alive[:count]
        ]
        return cls(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes on the machines, and give them back."""
        for node in self.nodes:
            node.close()
        ray.shutdown()
