"""Connection to a Redis server; needs the extra `redis`."""

from __future__ import annotations

import urllib.parse
from typing import Any

from serving.errors import InvalidSettings, NotReady

TIMEOUT_S = 2.0
"""Timeout of calls, which block a thread of their own."""


def connect(url: str, password: str | None) -> Any:
    """Return a client of the server at `server.state_store`, which answers.

    `url` is `redis://host:port/db`, `rediss://...` or `unix:///path/to/socket`. It must not contain
    a password, because settings are visible.

    Raises:
        InvalidSettings: the package is missing, or the URL is invalid or has a password.
        NotReady: the server is unavailable.
    """
    try:
        import redis  # noqa: PLC0415  an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ImportError:
        raise InvalidSettings(
            "server.state_store: states in Redis need the package redis: pip install '.[redis]' in a clone"
        ) from None
    options = {
        "password": password,
        "decode_responses": True,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1),  # for connections broken by a server restart
    }
    try:
        address = urllib.parse.urlsplit(url)
        if address.password is not None or "password" in urllib.parse.parse_qs(address.query):
            raise InvalidSettings(
                "server.state_store: the address contains a password, which everybody "
                "who may read settings would see; set LUTHIER_STATE_STORE_PASSWORD "
                "instead"
            )
        client = redis.Redis.from_url(url, **options)
        client.ping()  # at startup, where waiting is fine
    except (TypeError, ValueError) as error:  # TypeError: unknown option
        raise InvalidSettings(f"server.state_store: the address {url!r}: {error}") from error
    except redis.RedisError as error:
        raise NotReady(f"server.state_store: the Redis server does not answer: {error}") from error
    return client
