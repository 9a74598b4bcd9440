"""Variables of the environment that hold secrets of whoever runs a server: its own, and no other program's.

In: an environment. Out: the same without them. Model code runs with the rights of the server's user and could find
them all the same (`/proc`); so they are kept from what prints its environment, sends it away or leaves it to a child.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

TOKEN_VARIABLE = "LUTHIER_TOKEN"  # noqa: S105 - the variable's name
"""The token of those who may ask."""
ADMIN_TOKEN_VARIABLE = "LUTHIER_ADMIN_TOKEN"  # noqa: S105 - likewise
"""The token of those who may change the server."""
STORE_VARIABLE = "LUTHIER_STATE_STORE_PASSWORD"
"""The password of `server.state_store`."""
SECRETS = (TOKEN_VARIABLE, ADMIN_TOKEN_VARIABLE, STORE_VARIABLE)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What another program gets of an environment."""
    return {name: text for name, text in environment.items() if name not in SECRETS}


def taken(environment: MutableMapping[str, str]) -> dict[str, str]:
    """The secrets of an environment, which has them no more: processes started later inherit none."""
    return {name: environment.pop(name) for name in SECRETS if name in environment}
