"""Environment variables with the server's own secrets, hidden from other programs.

Model code runs as the server's user and can still find them (`/proc`). Hiding protects against code
that prints its environment, sends it away or passes it to child processes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

TOKEN_VARIABLE = "LUTHIER_TOKEN"  # noqa: S105 - the variable's name
ADMIN_TOKEN_VARIABLE = "LUTHIER_ADMIN_TOKEN"  # noqa: S105 - likewise
STORE_VARIABLE = "LUTHIER_STATE_STORE_PASSWORD"
"""Variable with the password of `server.state_store`."""
SECRETS = (TOKEN_VARIABLE, ADMIN_TOKEN_VARIABLE, STORE_VARIABLE)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the server's secrets."""
    return {name: text for name, text in environment.items() if name not in SECRETS}


def take(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Remove and return the secrets, so that child processes do not inherit them."""
    return {name: environment.pop(name) for name in SECRETS if name in environment}
