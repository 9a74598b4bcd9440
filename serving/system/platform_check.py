"""Error message on platforms other than Linux: the equivalent command in a container.

Imports only the standard library.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import shlex
import sys
import urllib.parse
from collections.abc import Sequence

IMAGE = "python:3.12-slim"


def unsupported_message(program: str, words: Sequence[str], *, serves: bool = False) -> str | None:
    """Return an error line with the equivalent `docker run`, or None on Linux.

    `program` is the command, `words` its arguments, and `serves` whether it listens on a port.
    """
    system = str(sys.platform)  # mypy knows only its own platform
    if system == "linux":
        return None
    source = _source()
    name = "/source" if source is None else f"/source/{source.name}"
    inner = (
        f"pip install --quiet {shlex.quote(name)} && exec {program} {shlex.join(words)}".rstrip()
    )
    port = _port(words)
    published = f"--publish 127.0.0.1:{port}:{port} --env LUTHIER_SERVER__HOST=0.0.0.0 "
    here = '"${PWD}"'  # also valid in PowerShell
    quoted = f'"{inner}"' if system == "win32" else shlex.quote(inner)
    where = " (in the folder of its sources)" if source is None else ""
    return (
        f"{program}: luthier runs on Linux, and this is {system}; in a container{where}: "
        f"docker run --rm --interactive --tty {published if serves else ''}"
        f'--volume "{source or "${PWD}"}:{name}:ro" --volume {here}:/work --workdir /work '
        f"{IMAGE} sh -c {quoted}\n"
    )


def _port(words: Sequence[str]) -> str:
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--port", default="8000")
    port: str = options.parse_known_args(words)[0].port
    return port


def _source() -> pathlib.PurePath | None:
    checkout = pathlib.Path(__file__).resolve().parent.parent.parent
    if (checkout / "pyproject.toml").exists():
        return checkout
    metadata = importlib.import_module("importlib.metadata")  # slow; never needed on Linux

    try:
        noted = metadata.distribution("luthier").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    parts = urllib.parse.urlsplit(json.loads(noted or "{}").get("url", ""))
    if parts.scheme != "file":
        return None
    path = urllib.parse.unquote(parts.path)
    return pathlib.PurePath(path.removeprefix("/") if str(sys.platform) == "win32" else path)
