"""`tune`: which command is meant, where its words go, and what becomes of its errors and of
signals.

    tune --model ...     a study (`tuner.commands.study`)
    tune COMMAND ...     one of `COMMANDS`

Exit codes: 0 done, 1 it could not be done, 2 wrong use, 130 interrupted. An error is one line on
standard error; an unexpected one names the file that holds its traceback. With `--json` there is
exactly one JSON object on standard output, also for an error. The only place of `tuner` that
handles signals: SIGINT and SIGTERM become one KeyboardInterrupt, and what comes after it is
ignored, because everything that is then done ends by itself within seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import rich.console

from serving import __version__
from serving.errors import InvalidSettings, ServingError, UnknownModel, nearest
from tuner.commands import compare, doctor, export, load, report, resume, space, study
from tuner.commands.options import Parser
from tuner.commands.said import Said
from tuner.errors import Interrupted, TunerError, WrongUse
from tuner.store.event_log import EventLog
from tuner.study import Terminal

_log = logging.getLogger("tuner.cli")  # also when it runs as __main__


class Command(Protocol):
    """What a module of `tuner.commands` offers."""

    NAME: str
    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""

    def run(self, arguments: argparse.Namespace, terminal: Terminal) -> Said:
        """Do it."""


COMMANDS: Mapping[str, Command] = {
    command.NAME: command for command in (resume, report, compare, load, space, doctor, export)
}
"""Sub-commands by name; without one, a study is meant."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_json = "--json" in arguments
    console = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)
    with EventLog() as log, _one_interrupt():
        try:
            said = _run(arguments, Terminal(console=console, log=log))
        except SystemExit as ended:  # --help and --version have said what they had to say
            return int(ended.code or 0)
        except BaseException as error:
            return _told(error, log, is_json=is_json)
        return _shown(said, is_json=is_json)


def parser_of(name: str | None) -> Parser:
    """The parser of a command, or of a study without a name."""
    command: Command = study if name is None else COMMANDS[name]
    if name is not None:
        parser = Parser(prog=f"tune {name}", description=_sentence(command.SUMMARY))
    else:
        listed = "\n".join(f"  {name:<9} {command.SUMMARY}" for name, command in COMMANDS.items())
        parser = Parser(
            prog="tune",
            description=_sentence(command.SUMMARY),
            usage="tune --model NAME|FILE --concurrency N [options]\n       tune COMMAND ...",
            epilog=f"commands (tune COMMAND --help):\n{listed}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action="version", version=f"luthier {__version__}")
    command.add_arguments(parser)
    return parser


def _run(arguments: list[str], terminal: Terminal) -> Said:
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is not None and name not in COMMANDS:
        raise WrongUse(
            f"{name!r} is not a command{nearest(name, COMMANDS)} (commands: {', '.join(COMMANDS)}; "
            "a study: tune --model NAME --concurrency N)"
        )
    command: Command = study if name is None else COMMANDS[name]
    parsed = parser_of(name).parse_all(arguments if name is None else arguments[1:])
    return command.run(parsed, terminal)


def _shown(said: Said, *, is_json: bool) -> int:
    """Put the answer on standard output."""
    if is_json:
        sys.stdout.write(json.dumps({**said.data, "exit_code": said.exit_code}, default=str) + "\n")
    else:
        rich.console.Console(highlight=False, soft_wrap=True).print(said.text, markup=False)
    sys.stdout.flush()
    return said.exit_code


def _told(error: BaseException, log: EventLog, *, is_json: bool) -> int:
    """Put an error on standard error, and its code into the answer."""
    code, text = _described(error, log)
    sys.stderr.write(f"tune: {text}\n")
    if is_json:
        sys.stdout.write(json.dumps({"error": text, "exit_code": code}) + "\n")
        sys.stdout.flush()
    return code


def _described(error: BaseException, log: EventLog) -> tuple[int, str]:
    """Exit code and one line of an error."""
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted("nothing was kept")
    if isinstance(error, TunerError | ServingError):
        _log.warning("command ended", extra={"fields": {"error": str(error)}})
        is_wrong_use = isinstance(error, UnknownModel | InvalidSettings)
        code = error.exit_code if isinstance(error, TunerError) else 2 if is_wrong_use else 1
        return code, _one_line(str(error))
    _log.error("unexpected end", exc_info=error)
    kind = type(error).__name__
    return 1, _one_line(f"unexpected {kind}: {error}; details in {log.path_for_details()}")


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt once."""
    is_interrupted = False

    def interrupt(_number: int, _frame: types.FrameType | None) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


if __name__ == "__main__":
    sys.exit(main())
