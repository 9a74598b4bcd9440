"""H: the admin port, fuzzed from its OpenAPI document; without its token nothing but health.

No answer is a 5xx but 503, none takes longer than 5 s, and the server serves as before when what was
made is undone.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys

from tests.abuse import admin_api, wire
from tests.abuse.stage import Allowance, Context, Stage

SLOWEST_S = 5.0
_ODD = (
    b"", b"{}", b"[]", b"null", b"1", b'"a"', b"{", b"\xff", b"[" * 100_000, b'{"a":' * 50_000,
    b'{"settings":{"replica.count":1e400}}',
    b'{"settings":{"__proto__":{}}}', b'{"settings":null}', b'{"name":"\\ud800"}',
    b'{"model":"\\u0000"}', b'{"model":1}', b"a" * (1 << 20),
)  # fmt: skip

_CHANGED = (
    "replica.count", "replica.threads", "batching.max_size", "batching.timeout_us", "batching.policy",
    "cache.capacity_mb", "scheduling.queue_capacity",
)  # fmt: skip
"""Settings that the fuzzer may change."""


def run(context: Context) -> None:
    """Every operation without the token, odd bodies with it, then schemathesis."""
    subject = context.subject
    _, before = subject.ask("GET", "/admin/settings", admin=True)
    _without_token(context)
    for method, path in _operations():
        for body in _ODD if method != "GET" else ():
            status, _ = subject.ask(method, path, body, admin=True, timeout_s=SLOWEST_S)
            wrong = f"answered {status}" if status >= 500 and status != 503 else None
            context.case(
                f"{method} {path} with {body!r:.30}", wrong, body, method=method, path=path
            )
    _schemathesis(context)
    settings = json.loads(subject.ask("GET", "/admin/settings", admin=True)[1])
    context.note(f"generation {settings.get('generation')} of settings at the end")
    _undo(context, json.loads(before)["settings"])


def _deploy(context: Context) -> None:
    """The model that is handled; its observer's stays as it is."""
    body = json.dumps({"model": "echo", "name": "target"})
    context.subject.ask("POST", "/admin/models", body, admin=True, timeout_s=30)


def _at(settings: dict[str, dict[str, object]], name: str) -> object:
    section, _, knob = name.partition(".")
    return settings[section][knob]


def _undo(context: Context, settings: dict[str, dict[str, object]]) -> None:
    """Settings as they were, and only the models that there were."""
    subject = context.subject
    body = json.dumps({"settings": {name: _at(settings, name) for name in _CHANGED}})
    status, told = subject.ask("PATCH", "/admin/settings", body, admin=True, timeout_s=30)
    context.case(
        "settings set back", None if status == 200 else f"answered {status}: {told[:100]!r}"
    )
    for model in json.loads(subject.ask("GET", "/admin/models", admin=True)[1])["models"]:
        name = model["name"]
        subject.ask("DELETE", f"/admin/models/{name}/shadow", admin=True, timeout_s=30)
        for version in model["versions"]:
            if (name, version) not in {("echo", "1"), ("target", "1")}:
                path = f"/admin/models/{name}/versions/{version}"
                subject.ask("DELETE", path, admin=True, timeout_s=30)
    _deploy(context)


def _operations() -> list[tuple[str, str]]:
    found = []
    for path, methods in admin_api.document()["paths"].items():
        plain = path.replace("{name}", "target").replace("{version}", "9").replace("{label}", "new")
        found += [(method.upper(), plain) for method in methods]
    return found


def _without_token(context: Context) -> None:
    subject = context.subject
    if subject.admin_token() is None:
        context.case("a token by default", "whoever reaches the admin port may ask")
        return
    for method, path in _operations():
        for field in (
            b"",
            b"Authorization: Bearer x\r\n",
            b"Authorization: Basic eDp4\r\n",
            b"Authorization: \r\n",
        ):
            data = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
            heard = wire.exchange(
                subject.admin_port, [data + field + b"Content-Length: 0\r\n\r\n"], timeout_s=5
            )
            status = heard.statuses[0] if heard.answers else 0
            allowed = {200, 401} if path in {"/health", "/metrics"} else {401}
            context.case(
                f"{method} {path} without the token",
                None if status in allowed else f"answered {status}",
            )


def _schemathesis(context: Context) -> None:
    program = shutil.which("schemathesis") or str(
        pathlib.Path(sys.executable).with_name("schemathesis")
    )
    spec = context.folder / "admin.json"
    spec.write_text(json.dumps(admin_api.document()))
    words = [
        program, "run", str(spec), "--url", f"http://127.0.0.1:{context.subject.admin_port}",
        "--checks", "status_code_conformance",
        "--max-examples", str(context.size(200, 10)), "--seed", str(context.seed),
        "--request-timeout", str(SLOWEST_S), "--mode", "all", "--continue-on-failure", "--no-color",
        "--suppress-health-check", "all",  # of what is generated, not of the server
    ]  # fmt: skip
    for name, value in context.subject.authorization(admin=True).items():
        words += ["--header", f"{name}: {value}"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=context.folder,
        check=False,
        timeout=max(30, context.left_s - 30),
    )
    out = done.stdout
    cases = re.search(r"(\d+) generated", out)
    context.count(int(cases[1]) if cases else 0)
    for found in re.findall(
        r"(?s)_{5,} ((?:GET|POST|PUT|PATCH|DELETE) \S+) _{5,}(.*?)(?=\n_{5,}|\n={5,})", out
    ):
        told = " ".join(found[1].split())
        context.case(f"schemathesis, {found[0]}", told[:300])
    if done.returncode and not context.tally.failures:
        context.case("schemathesis", f"ended with {done.returncode}: {(out + done.stderr)[-300:]}")


STAGE = Stage(
    name="H",
    title="admin port",
    half=1,
    run=run,
    warm=_deploy,
    limit_s=480,
    modules={"schemathesis": "schemathesis"},
    allowance=Allowance(is_overload=True, stops_gateway=False),
)
