"""Place of a gateway among those of one machine."""

from __future__ import annotations

import dataclasses
import pathlib
import socket
from collections.abc import Callable
from typing import Any

from serving.api.admin_token import TokenPlace
from serving.engine.gateway_share import GatewayShare


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a gateway gets from the parent that it shares ports and state with others under."""

    share: GatewayShare
    folder: pathlib.Path | None
    """The state folder, which the parent has locked; None if the state is in Redis."""
    query: socket.socket
    grpc: socket.socket | None
    token: TokenPlace | None
    """Admin token, if the settings name none; a gateway that is started again keeps it."""
    tell: Callable[[dict[str, Any]], None]
    """Tells the parent that this gateway is ready, with the facts, leaving, or closed to new clients;
    or to stop the server."""
