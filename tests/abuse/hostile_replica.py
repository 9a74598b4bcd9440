"""A replica that lies: a program of the kind `command`, started by stage I with a seed and what it lies in.

    hostile_replica.py SEED PHASE SOCKET

It speaks the wire of docs/replica-wire.md as it should until PHASE (`hello`, `loaded`, `result`), and then
sends what an honest one would have sent, changed in one of many ways, or nothing. In the phase `child` it says no
lie, and starts a process that outlives it and keeps its socket; in any other it is honest. It knows nothing of
`serving`: another program would not either.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import sys
import time

_SIGNATURE = {
    "inputs": [{"name": "x", "datatype": "UINT8", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "UINT8", "shape": [-1, 2]}],
}


def message(kind: int, body: bytes) -> bytes:
    """A whole message."""
    return b"LW" + struct.pack("<BBI", 1, kind, len(body)) + body


def hello() -> bytes:
    """The first one."""
    said = {
        "wire": 1,
        "pid": os.getpid(),
        "features": ["json", "stage-times", "windows"],
        "monotonic_ns": time.monotonic_ns(),
    }
    return message(1, json.dumps(said).encode())


def loaded(action: int) -> bytes:
    """An answer to LOAD."""
    return message(
        3, struct.pack("<QHH", action, 0, 0) + json.dumps({"signature": _SIGNATURE}).encode()
    )


def result(action: int, count: int) -> bytes:
    """An answer to INFER: two zeros for each request."""
    descriptor = struct.pack("<HBBHQqq", 1, 1, 2, 1, 2, 1, 2) + b"y"
    frame = struct.pack("<I", len(descriptor)) + descriptor + b"\0\0"
    head = struct.pack("<QHHqQQQI", action, 0, 0, time.monotonic_ns(), 1, 1, 1, count)
    return message(7, head + struct.pack("<IHH", len(frame), 0, 0) * count + frame * count)


def changed(data: bytes, rng: random.Random) -> bytes:
    """What an honest replica would say, in one of many wrong forms."""
    way = rng.randrange(14)
    edited = bytearray(data)
    if way == 0:
        return data[: rng.randrange(len(data))]
    if way == 1:
        return data + rng.randbytes(rng.randrange(1, 2000))
    if way == 2:
        return rng.randbytes(rng.randrange(1, 4000))
    if way == 3:
        edited[4:8] = struct.pack(
            "<I", rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 1 << 30, len(data)])
        )
    elif way == 4:
        edited[3] = rng.randrange(256)
    elif way == 5:
        edited[:3] = rng.randbytes(3)
    elif way == 6:
        edited[8:16] = struct.pack("<Q", rng.choice([0, 2**63, 2**64 - 1, rng.getrandbits(64)]))
    elif way == 7:
        return data * rng.randrange(2, 50)
    elif way == 8:
        return b""
    elif way == 9:
        body = b'{"a":' * rng.choice([10, 10_000, 100_000])
        return message(data[3], data[8:20] + body)
    else:
        for _ in range(rng.randrange(1, 6)):
            edited[rng.randrange(len(edited))] = rng.choice(
                [0, 1, 127, 128, 255, rng.randrange(256)]
            )
    return bytes(edited)


def send(sock: socket.socket, data: bytes, rng: random.Random) -> None:
    """In one piece, or byte by byte."""
    if len(data) < 2000 and rng.random() < 0.2:
        for byte in data:
            sock.sendall(bytes((byte,)))
    else:
        sock.sendall(data)


def main() -> None:
    """Speak until the stream ends."""
    seed, phase, path = sys.argv[1:]
    rng = random.Random(seed)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    stream = sock.makefile("rb")
    if phase == "child" and not os.fork():
        time.sleep(600)
        os._exit(0)
    send(sock, changed(hello(), rng) if phase == "hello" else hello(), rng)
    while head := stream.read(8):
        kind, length = head[3], struct.unpack_from("<I", head, 4)[0]
        body = stream.read(length)
        action = struct.unpack_from("<Q", body)[0]
        if kind == 2:
            answer = loaded(action)
            lies = phase == "loaded"
        elif kind == 6:
            answer = result(action, struct.unpack_from("<I", body, 28)[0])
            lies = phase == "result"
        else:
            answer, lies = message(5, struct.pack("<QHH", action, 0, 0) + b"{}"), False
        send(sock, changed(answer, rng) if lies else answer, rng)


if __name__ == "__main__":
    try:
        main()
    except OSError:
        sys.exit(0)
