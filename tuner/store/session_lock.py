"""Lock of a study in PostgreSQL: it holds over machines, as long as the session that took it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

_LASTS = (
    # A machine that vanishes does not hold the lock for hours.
    "set tcp_keepalives_idle = 10",
    "set tcp_keepalives_interval = 5",
    "set tcp_keepalives_count = 3",
    # Between trials the session is idle. Older servers than 14 lack the setting.
    "select set_config(name, '0', false) from pg_settings where name = 'idle_session_timeout'",
)
_TAKE = sqlalchemy.text("select pg_try_advisory_lock(:number)")
_IS_HELD = sqlalchemy.text(
    "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
)


class SessionLock:
    """Lock that is held by one connection."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def lost(self) -> str | None:
        """Return why the lock is no longer held, or None if it is."""
        try:
            is_held = self._connection.execute(_IS_HELD).scalar()
        except SQLAlchemyError as error:
            return reason_of(error)
        return None if is_held else "another session answers"


@contextlib.contextmanager
def take(engine: sqlalchemy.Engine, name: str) -> Iterator[SessionLock | None]:
    """Yield the lock of this name, or None if another session has it; it ends with the block."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
    connection = engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    connection.detach()  # its session ends with the block, and with it the lock
    try:
        for words in _LASTS:
            connection.execute(sqlalchemy.text(words))
        is_held = connection.execute(_TAKE, {"number": number}).scalar()
        yield SessionLock(connection) if is_held else None
    finally:
        with contextlib.suppress(SQLAlchemyError):  # it has ended
            connection.close()


def reason_of(error: BaseException) -> str:
    """Return the first line of what the database said."""
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
