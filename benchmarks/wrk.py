"""Drives a server with `wrk`: one thread, N keep-alive connections, one POST body again and again.

The request is the same byte for byte, or has a number of its own wherever `NUMBERED` stands in it.

In: port, path, headers and body. Out: requests per second and latencies; any answer that is not
2xx, any lost connection and any time-out fails the run. Source: wrk's SCRIPTING page (`done`).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

NUMBERED = "################"
"""Stands in headers or body for the request's number, which is as long."""

NUMBERING = """\
local number = 0
local body, fields = wrk.body, {{}}
for name, value in pairs(wrk.headers) do
  if string.find(value, "{mark}", 1, true) then fields[#fields + 1] = {{name, value}} end
end
local at = string.find(body, "{mark}", 1, true)
local before = at and string.sub(body, 1, at - 1)
local after = at and string.sub(body, at + {length})
function request()
  number = number + 1
  local text = string.format("%0{length}d", number)
  for _, field in ipairs(fields) do wrk.headers[field[1]] = string.gsub(field[2], "{mark}", text) end
  if at then wrk.body = before .. text .. after end
  return wrk.format()
end
""".format(mark=NUMBERED, length=len(NUMBERED))

SCRIPT = """\
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
{headers}
{request}
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"status":%d,"lost":%d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
"""


class WrongAnswers(Exception):
    """Requests were lost or refused: the figures mean nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run gave."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


def is_missing() -> str | None:
    """How to install wrk, when it is not there."""
    return None if shutil.which("wrk") else "wrk is not installed; on Debian: apt-get install wrk"


def drive(
    port: int, path: str, *, body: bytes, headers: Mapping[str, str], connections: int, seconds: int
) -> Load:
    """Load the server for whole seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "body").write_bytes(body)
        lines = "\n".join(f'wrk.headers["{key}"] = "{value}"' for key, value in headers.items())
        is_numbered = NUMBERED.encode() in body or any(NUMBERED in one for one in headers.values())
        request = NUMBERING if is_numbered else ""
        script = SCRIPT.format(body=folder / "body", headers=lines, request=request)
        (folder / "post.lua").write_text(script)
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}s",
            "-s",
            str(folder / "post.lua"),
        ]
        output = subprocess.run(
            [*command, f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True
        ).stdout
    found = json.loads(output.splitlines()[-1])
    if found["status"] or found["lost"] or not found["requests"]:
        raise WrongAnswers(
            f"{path}: of {found['requests']} requests {found['status']} were not answered 2xx, "
            f"{found['lost']} were lost"
        )
    return Load(
        requests=found["requests"],
        requests_per_s=found["requests"] / (found["duration_us"] / 1e6),
        p50_ms=found["p50_us"] / 1e3,
        p99_ms=found["p99_us"] / 1e3,
    )
