"""Commands that end by themselves, each in a process forked from one that has imported the command.

What is tested is how a command ends, not how it is imported: this costs over a second each time.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence

from tests.fakes.commands import Done

Run = Callable[..., Done]


@contextlib.contextmanager
def forking(module: str, *preloaded: str) -> Iterator[Run]:
    """Yield what runs `main` of a module with arguments, optionally in a folder `cwd`, to its end.

    This module's own `main` runs scripts.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.forked_commands", module, *preloaded],
            cwd=pathlib.Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as parent,
    ):
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")

        def run(*arguments: str, cwd: pathlib.Path | None = None) -> Done:
            asked = {
                "arguments": list(map(str, arguments)),
                "folder": str(cwd or pathlib.Path.cwd()),
                "environment": dict(os.environ),
                "files": [str(out), str(err)],
            }
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(json.dumps(asked) + "\n")
            parent.stdin.flush()
            code = int(parent.stdout.readline())
            return Done(code, out.read_text("utf-8"), err.read_text("utf-8"))

        try:
            yield run
        finally:
            parent.kill()


def main(arguments: Sequence[str]) -> int:
    """Run a script with arguments, as `python SCRIPT ARGUMENT...` does."""
    sys.argv = [*arguments]
    sys.path.insert(0, str(pathlib.Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _code(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and what it has left to do at the exit; libraries of the parent are not told of it.

    Those that had threads in the parent wait for them forever.
    """
    try:
        code = command(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _serve(module: str, *preloaded: str) -> None:
    command = importlib.import_module(module).main
    for name in preloaded:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for descriptor, path in enumerate([os.devnull, *asked["files"]]):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.chdir(asked["folder"])
            os._exit(_code(command, asked["arguments"]))
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
