"""Settings of replicas on other machines."""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.settings.setting import setting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Other machines, if `replica.spawner` is ray (docs/machines.md)."""

    address: str = setting("auto", live=False)
    """Address of the Ray head, as `10.0.0.1:6379`. Default auto: RAY_ADDRESS, or this machine's."""
    spawner: Literal["process", "docker"] = setting("process", live=False)
    """What runs the replicas on their machines, as `replica.spawner` does on one. Default process."""
    strategy: Literal["spread", "pack"] = setting("spread", live=False)
    """Whether replicas go to the machine with the fewest of them, or fill one after the other.

    Default spread: the loss of a machine then takes as few as possible.
    """
    node_timeout_s: float = setting(2.0, "s", 0.2, 60, live=False)
    """Time after which a machine that is not heard is lost; what it ran is run elsewhere.

    Default 2 s: longer than a pause of the network, shorter than clients wait.
    """
    tls: Literal["mutual", "none"] = setting("mutual", live=False)
    """Whether connections to other machines are encrypted, and both sides checked.

    `mutual`: by a key that each side makes for each run. `none`: where the network itself encrypts, as
    large bodies are then sent up to four times as fast. Default mutual.
    """
    access: Literal["token", "open"] = setting("token", live=False)
    """Whether Ray must ask for a token (`RAY_AUTH_MODE=token`).

    `open`: it need not, so that everybody who reaches it can run code on all machines. Default token.
    """
