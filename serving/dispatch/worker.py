"""What is known of a replica that is connected: who is told of it, what it holds, and what it was given."""

from __future__ import annotations

from collections.abc import Callable

from serving.dispatch.connection import Connection
from serving.dispatch.loads import Loaded, Wanted
from serving.errors import ServingError
from serving.scheduling.seam import Action, Kind
from serving.values import ModelId


class Worker:
    """One replica that is connected."""

    __slots__ = (
        "connection",
        "heard_s",
        "holds",
        "labels",
        "on_broken",
        "on_loaded",
        "sent",
        "wanted",
    )

    def __init__(
        self,
        connection: Connection,
        wanted: Callable[[ModelId], Wanted],
        on_loaded: Callable[[ModelId, Loaded | ServingError], None],
        on_broken: Callable[[str | None], None],
    ) -> None:
        self.connection = connection
        self.wanted = wanted
        self.on_loaded = on_loaded
        self.on_broken = on_broken
        self.holds: set[ModelId] = set()
        """What it has in memory."""
        self.heard_s = 0.0
        """When its last result came."""
        self.labels: dict[int, str] = {}
        """What loads that it has are of, for people."""
        self.sent: dict[int, tuple[Action, float]] = {}
        """Unfinished actions and when they were sent."""

    @property
    def is_loading(self) -> bool:
        """Whether what it is at is a load."""
        return bool(self.sent) and next(iter(self.sent.values()))[0].kind is Kind.LOAD

    @property
    def oldest_sent_s(self) -> float | None:
        """Since when it has been at its oldest unfinished action: a buffered one waits its turn."""
        if not self.sent:
            return None
        return max(self.heard_s, next(iter(self.sent.values()))[1])
