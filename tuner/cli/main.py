"""Entry point of `tune`, called by `tuner.__main__`: commands, output, errors and signals.

    tune --model ...       a study of one model (`tuner.cli.commands.study`)
    tune --scenario FILE   a study of many models
    tune COMMAND ...       one of `COMMANDS`

Exit codes: 0 done, 1 failed, 2 incorrect use, 130 interrupted. An error is one line on standard
error; an unexpected one names the file with the traceback. `--json` prints exactly one JSON
object, even after an error.

Only this module handles signals. Commands are imported late, since importing Optuna and SciPy
takes a second, during which Ctrl-C must work.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import shlex
import signal
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence

import rich.console

from serving import __version__
from serving.error_text import nearest, one_line
from serving.errors import InvalidSettings, ServingError, UnknownModel
from tuner.cli.commands import CommandResult
from tuner.cli.commands.options import CommandParser, add_json
from tuner.errors import Interrupted, TunerError, UnknownSize, UsageError
from tuner.report import console_text
from tuner.store.event_log import EventLog
from tuner.study.progress import Terminal

COMMANDS: Mapping[str, str] = {
    "ab": "compare two settings files, studies, models, engines or running servers without a "
    "search",
    "resume": "resume an interrupted study with its remaining budget",
    "report": "rewrite report.html of studies and print their results",
    "convert": "convert a study of format 1, with its old names, to format 2",
    "compare": "compare samplers under equal budgets and re-evaluate their winners",
    "record": "evaluate every configuration of a grid several times into a benchmark table",
    "replay": "search a recorded benchmark table repeatedly without serving",
    "pool": "emulate a scenario of many models on a few workers in virtual time, or serve it",
    "load": "load a running server and print its latencies",
    "inputs": "show a model's inputs and the requests that a study would send",
    "space": "derive a search space for a model from a short probe",
    "doctor": "check this machine and measure the smallest gain that it can show",
    "export": "export a study's recommendation for a server or platform",
    "confirm": "measure an export where it runs, against its study",
}
"""Summary of each sub-command; each is a module of `tuner.cli.commands`."""
SUMMARY = "find the configuration that serves a model best under a given workload"
AGAIN_S = 3.0
"""Time after which another signal raises an exception again, in case the command hangs."""
PIPED_COLUMNS = 200
_log = logging.getLogger("tuner.cli.main")  # also when it runs as __main__


class Interrupts:
    """Signal handler that raises one KeyboardInterrupt for SIGINT or SIGTERM.

    Further signals are ignored while the command ends.
    """

    def __init__(self) -> None:
        self._at_s: float | None = None

    def check(self) -> None:
        """Raise KeyboardInterrupt after a signal, in case the first exception was swallowed."""
        if self._at_s is not None:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle signals inside the block."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: types.FrameType | None) -> None:
        now_s = time.monotonic()
        if self._at_s is None or now_s - self._at_s > AGAIN_S:
            self._at_s = now_s
            raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None, *, program: str = "tune") -> int:
    """Run one command under the name `program` and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json = "--json" in arguments
    console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
    interrupts = Interrupts()
    with EventLog() as log, interrupts.handle_signals():
        try:
            terminal = Terminal(console=console, log=log, check=interrupts.check)
            said = _run(arguments, terminal, program)
            lack = said.problem
            problem = None if lack is None else one_line(_error_text(lack, arguments, program))
            return _print_result(said, problem, program, is_json=is_json)
        except SystemExit as ended:  # --help and --version have printed
            return int(ended.code or 0)
        except BaseException as error:  # every end becomes a code and a line
            return print_error(error, log, arguments, program=program, is_json=is_json)


def parser_of(name: str | None, program: str = "tune") -> CommandParser:
    """Return the parser of a command; None stands for a new study."""
    if name is not None:
        parser = CommandParser(prog=f"{program} {name}", description=_sentence(COMMANDS[name]))
    else:
        listed = "\n".join(f"  {name:<9} {summary}" for name, summary in COMMANDS.items())
        parser = CommandParser(
            prog=program,
            description=_sentence(SUMMARY),
            usage=f"{program} --model NAME|FILE --concurrency N [options]\n"
            f"       {program} --scenario FILE [options]\n       {program} COMMAND ...",
            epilog=f"commands ({program} COMMAND --help):\n{listed}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action="version", version=f"luthier {__version__}")
    command_of(name).add_arguments(parser)
    add_json(parser)
    return parser


def command_of(name: str | None) -> types.ModuleType:
    """Import the module of a command; None stands for a new study."""
    return importlib.import_module(f"tuner.cli.commands.{name or 'study'}")


def print_error(
    error: BaseException,
    log: EventLog,
    arguments: Sequence[str] = (),
    *,
    program: str = "tune",
    is_json: bool,
) -> int:
    """Print an error, also as JSON if `is_json`, and return its exit code.

    The command's `arguments` are repeated in an error that suggests adding an option.
    """
    code, text = _describe_error(error, log, arguments, program)
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{program}: {text}\n")
        if is_json:
            sys.stdout.write(json.dumps({"error": text, "exit_code": code}) + "\n")
            sys.stdout.flush()
    return code


def _run(arguments: list[str], terminal: Terminal, program: str) -> CommandResult:
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is not None and name not in COMMANDS:
        raise UsageError(
            f"{name!r} is not a command{nearest(name, COMMANDS)} (commands: {', '.join(COMMANDS)}; "
            f"a study: {program} --model NAME --concurrency N)"
        )
    parsed = parser_of(name, program).parse_all(arguments if name is None else arguments[1:])
    said: CommandResult = command_of(name).run(parsed, terminal)
    return said


def _print_result(said: CommandResult, problem: str | None, program: str, *, is_json: bool) -> int:
    code = said.exit_code if said.problem is None else said.problem.exit_code
    with contextlib.suppress(BrokenPipeError):
        if is_json:
            answer = {**said.data, "exit_code": code}
            if problem is not None:
                answer["error"] = problem
            sys.stdout.write(json.dumps(answer, default=str) + "\n")
        else:
            console = rich.console.Console(highlight=False, soft_wrap=True)
            if not console.is_terminal and "COLUMNS" not in os.environ:
                console.width = PIPED_COLUMNS  # no window: keeps table rows whole
            console_text.show(console, said.text)
        sys.stdout.flush()
        if problem is not None:
            sys.stderr.write(f"{program}: {problem}\n")
    return code


def _error_text(error: BaseException, arguments: Sequence[str], program: str) -> str:
    if isinstance(error, UnknownSize) and arguments:
        return f"{error}; for example: {program} {shlex.join(arguments)} {error.option}"
    return str(error)


def _describe_error(
    error: BaseException, log: EventLog, arguments: Sequence[str], program: str
) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted("nothing was saved")
    if isinstance(error, TunerError | ServingError):
        _log.warning("command ended", extra={"fields": {"error": str(error)}})
        is_wrong_use = isinstance(error, UnknownModel | InvalidSettings)
        code = error.exit_code if isinstance(error, TunerError) else 2 if is_wrong_use else 1
        return code, one_line(_error_text(error, arguments, program))
    _log.error("unexpected end", exc_info=error)
    kind = type(error).__name__
    return 1, one_line(f"unexpected {kind}: {error}; details in {log.path_for_details()}")


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


if __name__ == "__main__":
    sys.exit(main())
