"""The end of a template that was taken over: its gateway waits for the process, not only for the socket."""

import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile

from serving import owner
from serving.replica.forker import Forker, program_of
from serving.replica.template import SOCKET

SLOW_TO_END = """
import json, pathlib, socket, sys, time
from serving import owner
from serving.replica import succession
directory = pathlib.Path(sys.argv[1], owner.this_process().new_name())
directory.mkdir(mode=0o700)
listener = succession.listener_in(str(directory), sys.argv[2])
listener.setblocking(True)
print(directory, flush=True)
control = succession.met(listener)
left = {"program": json.loads(sys.argv[3]), "forks": True, "limits": {}, "last": 0, "workers": []}
control.sendall(json.dumps(left).encode() + b"\\n")
while control.recv(1000).count(b'"end"') == 0:
    pass
control.close()
time.sleep(0.4)
"""


def test_a_template_that_was_taken_over_is_gone_when_its_forker_is_closed():
    """It lets go of its socket first, and of the machine a little later."""
    facts = json.dumps(program_of("onnx"))

    async def closed(directory):
        events = []
        forker, left = await Forker.taken_over(
            "onnx", directory, on_event=lambda _, event: events.append(event), timeout_s=10
        )
        assert left.workers == []
        await forker.close()
        return events, owner.of(directory.name).is_gone()

    with tempfile.TemporaryDirectory() as base:  # a socket's path is short
        words = [sys.executable, "-c", SLOW_TO_END, base, SOCKET, facts]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            directory = pathlib.Path(process.stdout.readline().strip())
            assert asyncio.run(closed(directory)) == ([{"event": "closed"}], True)
