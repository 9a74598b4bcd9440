"""A gateway's part of the replicas that a server's gateways have together."""

from __future__ import annotations

import dataclasses

from serving.settings import ServingSettings

_COUNT = "replica.count"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatewayShare:
    """The part of gateway `index` among `gateways`, counted from 0."""

    index: int = 0
    gateways: int = 1

    def count(self, replicas: int) -> int:
        """Return how many of the replicas are this gateway's: as many as others', and at least one."""
        whole, rest = divmod(replicas, self.gateways)
        return max(1, whole + (self.index < rest))

    def of(self, settings: ServingSettings) -> ServingSettings:
        """Return the settings with this gateway's part of every `replica.count`."""
        if self.gateways == 1:
            return settings
        counts = {
            name: self.count(value)
            for name, value in settings.flat().items()
            if (name == _COUNT or name.endswith(f".{_COUNT}")) and isinstance(value, int)
        }
        return settings.with_changes(counts)
