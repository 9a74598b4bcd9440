"""Clipper's management protocol: commands for applications, links, models and versions.

Success is 200; errors are 400 with Clipper's messages, which clients match on. The commands
validate, the `Catalogue` executes. Pure. Source: Clipper's management frontend.
"""

from __future__ import annotations

from serving.api.clipper import application_commands, model_commands, requests
from serving.api.clipper.catalogue import Catalogue
from serving.api.clipper.fields import CommandFields, CommandResponse, refusal, reply
from serving.errors import ServingError

BASE = "/admin"
PING = f"{BASE}/ping"
PONG = "PONG"
_COMMANDS = application_commands.COMMANDS | model_commands.COMMANDS

PATHS = tuple(f"{BASE}{path}" for path in _COMMANDS)
"""All POST paths."""


def dispatch(catalogue: Catalogue, path: str, body: bytes) -> CommandResponse | None:
    """Execute a command; return None if unknown."""
    if path == PING:
        return CommandResponse(200, PONG, False)
    known = _COMMANDS.get(path.removeprefix(BASE)) if path.startswith(f"{BASE}/") else None
    if known is None:
        return None
    command, schema = known
    try:
        outcome = command(catalogue, CommandFields(requests.document(body, schema), schema))
    except ServingError as error:
        return refusal(error)
    return reply(outcome)
