"""New connections go to the sockets that are open for them, on a real port."""

import contextlib
import socket

import pytest

from serving.app.ports import bind
from serving.app.steering import steer
from serving.errors import NotReady

COUNT = 4
CONNECTIONS = 100


@pytest.fixture(name="sockets")
def _sockets():
    with contextlib.ExitStack() as closed:
        made = [bind("127.0.0.1", 0, "port")]
        closed.callback(made[0].close)
        made[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(COUNT - 1):
            made.append(bind("127.0.0.1", made[0].getsockname()[1], "port", joins=True))
            closed.callback(made[-1].close)
        for sock in made:
            sock.listen(CONNECTIONS)
            sock.setblocking(False)
        yield made


def counts(sockets):
    """How many of some new connections each socket gets."""
    address = sockets[0].getsockname()
    with contextlib.ExitStack() as closed:
        for _ in range(CONNECTIONS):
            closed.enter_context(socket.create_connection(address, 10))
        found = []
        for sock in sockets:
            found.append(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.accept()[0].close()
                    found[-1] += 1
        return found


@pytest.mark.parametrize("open_", [[0, 1, 2, 3], [1, 3], [2], [0, 1, 2]])
def test_only_open_sockets_get_connections(sockets, open_):
    """All of them, each some (a false alarm: once in 10^11), and also after another choice."""
    steer(sockets[0], [0])
    steer(sockets[-1], open_)
    found = counts(sockets)
    assert sum(found) == CONNECTIONS
    assert [index for index, count in enumerate(found) if count] == open_


def test_what_waits_in_a_socket_is_not_moved(sockets):
    """It is there for who accepts next, while new connections go elsewhere."""
    steer(sockets[0], [1])
    with socket.create_connection(sockets[0].getsockname(), 10) as waiting:
        steer(sockets[0], [2])
        assert counts(sockets)[2] == CONNECTIONS
        assert waiting.getpeername() == sockets[0].getsockname()


def test_nobody_else_may_join(sockets):
    """Another server that takes the port finds it in use."""
    with pytest.raises(NotReady, match="is in use"):
        bind("127.0.0.1", sockets[0].getsockname()[1], "port")
