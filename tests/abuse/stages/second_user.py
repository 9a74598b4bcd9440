"""P: what another user of the machine reaches: sockets, state, caches, the admin port, folders made before us.

A second uid is taken by `setpriv`; what it tries must end with EACCES, or be refused with a reason.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

from tests.abuse.stage import Context, Stage
from tests.abuse.subject import NotReady, Subject, SubjectSpec

OTHER = 65_534
_PROBE = """
import json, os, socket, sys, urllib.request
said = {}
for path in sys.argv[2:]:
    for name, mode in (("read", os.R_OK), ("write", os.W_OK)):
        said[f"{name} {path}"] = os.access(path, mode)
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        said[f"connect {path}"] = True
    except OSError:
        said[f"connect {path}"] = False
for method, path, body in (
    ("GET", "/admin/settings", None), ("GET", "/admin/models", None), ("GET", "/admin/replicas", None),
    ("PATCH", "/admin/settings", b"{}"), ("POST", "/admin/models", b"{}"), ("POST", "/admin/add_app", b"{}"),
    ("POST", "/admin/start_containers", b"{}"), ("POST", "/admin/shutdown", b""),
):
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}{path}", body, method=method)
    try:
        said[f"{method} {path}"] = urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        said[f"{method} {path}"] = error.code
    except OSError as error:
        said[f"{method} {path}"] = 0
print(json.dumps(said))
"""


def run(context: Context) -> None:
    """Look at everything that a server with a state folder has, as another user."""
    if os.getuid() != 0:
        context.note("left out: only root can be two users")
        return
    os.chmod(context.folder, 0o711)  # noqa: PTH101 - else the folder itself would keep the other one out
    folder = context.folder / "s"
    folder.mkdir(mode=0o711)
    state = folder / "state"
    with Subject(folder, SubjectSpec(settings={"server.state_dir": state})) as subject:
        for name in ("tmp", "cache", "run"):
            os.chmod(folder / name, 0o711)  # noqa: PTH101 - likewise: what is inside is to keep them out
        subject.ask(
            "POST", "/admin/models", json.dumps({"model": "echo", "name": "second"}), admin=True
        )
        paths = [
            path for name in ("tmp", "cache", "run", "state") for path in _below(folder / name)
        ]
        said = _said_by_other(subject, paths)
        for what, answer in said.items():
            context.case(what.replace(str(folder), "."), _wrong(what, answer))
        for path in _below(state):
            mode = stat.S_IMODE(path.lstat().st_mode)
            context.case(
                f"mode of {path.name}", f"{mode:o} lets others in" if mode & 0o077 else None
            )
        context.case("ready afterwards", None if subject.is_ready() else "it is not")
    for name, made in _traps(context.folder).items():
        context.case(name, made)


def _below(folder: pathlib.Path) -> list[pathlib.Path]:
    return [folder, *sorted(folder.rglob("*"))] if folder.exists() else []


def _said_by_other(subject: Subject, paths: list[pathlib.Path]) -> dict[str, object]:
    named = [str(path) for path in paths if path.name not in {"tmp", "cache", "run"}]
    script = subject.folder.parent / "probe.py"
    script.write_text(_PROBE)
    script.chmod(0o644)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    done = subprocess.run(
        ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups",
         python, str(script), str(subject.admin_port), *named],
        capture_output=True, text=True, timeout=60, check=True, cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    answers = json.loads(done.stdout)
    assert isinstance(answers, dict)
    return answers


def _wrong(what: str, answer: object) -> str | None:
    verb, _, rest = what.partition(" ")
    if verb in {"read", "write", "connect"}:
        return "another user can" if answer else None
    return None if answer in {401, 403} else f"answered {answer} without a token ({rest})"


def _traps(base: pathlib.Path) -> dict[str, str | None]:
    """Folders that another user made before the server, under the names that it would take."""
    found: dict[str, str | None] = {}
    for name in (f"luthier-cache-{os.getuid()}", f"luthier-state-{os.getuid()}"):
        folder = base / f"trap-{name[8:13]}"
        folder.mkdir()
        (folder / "tmp").mkdir()
        trap = folder / "tmp" / name
        trap.mkdir()
        os.chown(trap, OTHER, OTHER)
        (folder / "tmp").chmod(0o1777)
        environment = {"XDG_CACHE_HOME": "", "XDG_STATE_HOME": "", "HOME": "/nonexistent"}
        subject = Subject(
            folder, SubjectSpec(environment=environment, arguments=("--model", "resnet"))
        )
        try:
            with subject:
                written = sorted(path.name for path in trap.rglob("*"))
            found[f"a folder {name} of another user"] = f"used: {written[:5]}" if written else None
        except NotReady as error:
            found[f"a folder {name} of another user"] = (
                None if "Traceback" not in str(error) else str(error)[-200:]
            )
    return found


STAGE = Stage(
    name="P",
    title="another user of the machine",
    half=1,
    run=run,
    is_quick=True,
    quick_limit_s=60,
    programs={"setpriv": "util-linux"},
)
