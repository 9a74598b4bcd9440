"""Clipper's management protocol: POST /admin/COMMAND, with a JSON object as the body.

Success is answered with 200, errors with 400 and Clipper's messages, which clients match on. The
commands validate their input, and `ClipperService` executes them. Source: Clipper's management
frontend.
"""

from __future__ import annotations

import inspect

from serving.api.clipper import application_commands, model_commands
from serving.api.clipper.fields import JsonFields
from serving.api.clipper.service import ClipperService
from serving.api.parsing.bounded_json import write
from serving.errors import ServingError

BASE = "/admin"
PING = f"{BASE}/ping"
_COMMANDS = application_commands.COMMANDS | model_commands.COMMANDS
PATHS = tuple(f"{BASE}{path}" for path in _COMMANDS)
"""Paths of all commands except ping."""


async def execute(service: ClipperService, path: str, body: bytes) -> tuple[int, str]:
    """Return the status and body of a command's response; `path` is one of `PATHS` or `PING`."""
    if path == PING:
        return 200, "PONG"
    command, schema = _COMMANDS[path.removeprefix(BASE)]
    try:
        outcome = command(service, JsonFields.parse(body, schema))
        if inspect.isawaitable(outcome):
            outcome = await outcome
    except ServingError as error:
        return 400, str(error)
    return 200, outcome if isinstance(outcome, str) else write(outcome)
