"""On anything but Linux the commands end with one line, and its `docker run` does what was asked for."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from serving.system import platform_check

ROOT = pathlib.Path(__file__).parent.parent
LINUX_ONLY = ("fcntl", "grp", "httptools", "onnxruntime", "pwd", "resource", "termios", "uvloop")
"""Modules that other systems do not have, or may not have."""


def ended(module: str, words: list[str], platform: str) -> subprocess.CompletedProcess[str]:
    """A command on another system: its name is told, and what it lacks cannot be imported."""
    code = (
        f"import runpy, sys; sys.platform = {platform!r}; "
        f"sys.modules.update(dict.fromkeys({LINUX_ONLY})); "
        f"sys.argv[1:] = {words!r}; runpy.run_module({module!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize(
    ("module", "program", "words"),
    [
        ("serving", "python -m serving", ["--model", "resnet", "--port", "9000"]),
        ("tuner", "tune", ["--model", "my model.onnx", "--concurrency", "8"]),
        ("tuner.cli.luthier", "luthier", ["resume", "my study"]),
    ],
)
def test_the_command_ends_with_one_line(
    module: str, program: str, words: list[str], platform: str
) -> None:
    """No traceback; the words that were given run in the container, in this folder, on the port that was asked for."""
    done = ended(module, words, platform)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{program}: luthier runs on Linux, and this is {platform}; ")
    command = shlex.split(done.stderr[done.stderr.index("docker run") :])
    assert command[command.index("--workdir") - 2 : command.index("--workdir")] == [
        "--volume",
        "${PWD}:/work",
    ]
    assert f"{ROOT}:/source/{ROOT.name}:ro" in command
    assert ("127.0.0.1:9000:9000" in command) == (module == "serving")
    installs, runs = command[-1].split(" && ")
    assert installs == f"pip install --quiet /source/{ROOT.name}"
    assert runs == f"exec {program} {shlex.join(words)}"


def test_on_linux_nothing_is_said() -> None:
    """The command goes on."""
    assert platform_check.unsupported_message("tune", []) is None


def test_the_wheel_starts_where_the_check_is() -> None:
    """The scripts are `tuner.__main__` and what imports nothing else before it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^tune = "tuner\.__main__:main"$', text, re.MULTILINE)
    assert re.search(r'^luthier = "tuner\.cli\.luthier:main" ', text, re.MULTILINE)
