"""State of a connected replica: callbacks, loaded models and unfinished actions."""

from __future__ import annotations

from collections.abc import Callable

from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.errors import ServingError
from serving.scheduling.interface import Action, ActionType
from serving.values import ModelId


class ConnectedReplica:
    """A connected replica."""

    __slots__ = (
        "connection",
        "labels",
        "last_result_s",
        "loaded",
        "on_connection_lost",
        "on_loaded",
        "sent",
        "wanted",
    )

    def __init__(
        self,
        connection: ReplicaConnection,
        wanted: Callable[[ModelId], LoadSpec],
        on_loaded: Callable[[ModelId, LoadReport | ServingError], None],
        on_connection_lost: Callable[[str | None], None],
    ) -> None:
        self.connection = connection
        self.wanted = wanted
        self.on_loaded = on_loaded
        self.on_connection_lost = on_connection_lost
        self.loaded: set[ModelId] = set()
        self.last_result_s = 0.0
        self.labels: dict[int, str] = {}
        self.sent: dict[int, tuple[Action, float]] = {}

    @property
    def is_loading(self) -> bool:
        """Whether its current action is a load."""
        return bool(self.sent) and next(iter(self.sent.values()))[0].kind is ActionType.LOAD

    @property
    def oldest_sent_s(self) -> float | None:
        """Start of its oldest unfinished action: a buffered one waits for the last result."""
        if not self.sent:
            return None
        return max(self.last_result_s, next(iter(self.sent.values()))[1])
