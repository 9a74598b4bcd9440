"""Connections are open files, of which there is an end: in processes of their own, whose limit may be lowered."""

import os
import pathlib
import socket
import subprocess
import sys
import time

ROOM = """
import resource, sys
from serving.system.open_files import RESERVE, room_for
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 1000))
assert room_for(100) == 100 and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400
assert room_for(500) == 500 and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + RESERVE
assert room_for(5000) == 1000 - RESERVE and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1000
def refuse(which, limits):
    raise OSError(1, "Operation not permitted")
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 1000))
resource.setrlimit = refuse
assert room_for(500) == 400 - RESERVE
"""
SERVER = """
import resource, sys
from tests.fakes.listening import listening
from serving.api.http.messages import Response
class Routes:
    def handle(self, head, body, connection):
        return Response(200, b"", b"")
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
with listening(Routes()) as port:
    print(port.number, flush=True)
    sys.stdin.readline()
"""


def test_the_limit_is_raised_as_far_as_it_goes():
    """And what there is no room for is told."""
    done = subprocess.run(
        [sys.executable, "-c", ROOM], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "server.max_connections" in done.stderr


def test_without_open_files_the_server_goes_on():
    """At the limit it neither spins nor forgets those it serves, and afterwards takes new ones."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        address = ("127.0.0.1", int(process.stdout.readline()))

        def cpu_s():
            stat = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
            user, system = stat.rsplit(")", 1)[1].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

        def is_served(sock):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return sock.recv(100).startswith(b"HTTP/1.1 200")

        clients = [socket.create_connection(address, timeout=10) for _ in range(100)]
        assert is_served(clients[0])
        before_s, began_s = cpu_s(), time.monotonic()
        time.sleep(0.5)
        assert cpu_s() - before_s < (time.monotonic() - began_s) / 2
        for client in clients:
            client.close()
        end_s = time.monotonic() + 10
        while sum(1 for _ in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()) > 30:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with socket.create_connection(address, timeout=10) as client:
            assert is_served(client)
        process.stdin.write("\n")
