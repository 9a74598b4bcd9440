"""Settings groups as command-line options, and back.

Option and help come from the setting. A field without a default is required.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from serving.error_text import nearest
from tuner.errors import UsageError
from tuner.evaluation.scenarios import files as scenario_files
from tuner.evaluation.scenarios import tuning
from tuner.settings.measurement import SCENARIO_S, MeasurementSettings
from tuner.settings.option import options
from tuner.settings.study import GROUPS, StudySettings
from tuner.settings.workload import SCENARIO

Group = TypeVar("Group")
ArgumentGroup = argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it

TITLES = {
    "target": "target",
    "search": "search",
    "measurement": "measurement",
    "store": "storage",
}
KINDS = {int: "a whole number", float: "a number"}


class CommandParser(argparse.ArgumentParser):
    """A parser that raises one-line errors instead of printing."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def parse_all(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, or raise UsageError with the nearest option for an unknown one."""
        known = [flag for action in self._actions for flag in action.option_strings]
        for given in arguments:  # report a misspelt option before the missing one
            if given == "--":
                break
            flag = given.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in known:
                self.error(f"unknown argument {flag!r}{nearest(flag, known)}")
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(f"unknown argument {unknown[0]!r}{nearest(unknown[0], known)}")
        return found


def add_group(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    only: Iterable[str] | None = None,
    but: Iterable[str] = (),
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> ArgumentGroup:
    """Add the options of a group of settings, and return the parser's group.

    Args:
        name: a key of `tuner.settings.study.GROUPS`.
        only: fields to add; None: all.
        but: fields to omit.
        instead: defaults that replace the settings' own.
    """
    known = {field.name for field, _ in options(GROUPS[name])}
    wanted = (known if only is None else set(only)) - set(but)
    group = parser.add_argument_group(TITLES[name])
    for field, option in options(GROUPS[name]):
        if field.name not in wanted:
            continue
        is_needed = field.default is dataclasses.MISSING
        told = option.help
        if option.instead is not None:
            is_needed = option.instead not in wanted
            told += "" if is_needed else option.more
        if field.name in instead:
            told = f"{told.partition('; default')[0]}; default {instead[field.name]}"
        if option.is_flag:
            group.add_argument(
                option.flag,
                action="store_true",
                dest=field.name,
                help=told.replace("%", "%%"),
                default=argparse.SUPPRESS,
            )
            continue
        group.add_argument(
            option.flag,
            action="append" if option.is_repeated else "store",
            dest=field.name,
            metavar=option.metavar,
            type=parsing(option.parse),
            help=told.replace("%", "%%"),
            required=is_needed,
            default=instead.get(field.name, argparse.SUPPRESS),
            choices=option.choices,
        )
    return group


def group_of(arguments: argparse.Namespace, kind: type[Group]) -> Group:
    """Return the given group of settings, with defaults.

    Raises:
        UsageError: a value is out of range.
    """
    names = [field.name for field, _ in options(kind)]
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def settings_of(arguments: argparse.Namespace) -> StudySettings:
    """Return all groups.

    Raises:
        UsageError: a value is out of range, or there is nothing to tune.
    """
    take_scenario(arguments)
    return StudySettings(**{name: group_of(arguments, kind) for name, kind in GROUPS.items()})


def take_scenario(arguments: argparse.Namespace) -> None:
    """Fill options that were not given from the scenario.

    Raises:
        UsageError: invalid scenario, contradicting option, or neither scenario nor model.
    """
    given = vars(arguments)
    file = given.get("scenario")
    if file is None:
        if "model" not in given:
            raise UsageError("no target; give --model NAME|FILE, or --scenario FILE")
        return
    for name in ("model", "rate", "arrivals"):
        if name in given:
            raise UsageError(
                f"--{name} {given[name]}: not allowed with --scenario, whose file defines "
                "the models and the requests"
            )
    scenario = scenario_files.read(pathlib.Path(file).absolute())  # as a study parses it
    given.setdefault("objective", "goodput")
    given.setdefault("seconds", SCENARIO_S)
    warmup_s = given.get("warmup_s", MeasurementSettings().warmup_s)
    tuning.check(scenario, seconds=warmup_s + given["seconds"])
    deadline_ms = tuning.deadline_ms(scenario)
    if given.setdefault("slo_ms", deadline_ms) != deadline_ms:
        raise UsageError(
            f"--slo-ms {given['slo_ms']:g}: the scenario's requests have their own "
            f"deadline, {deadline_ms:g} ms; change it in the scenario file"
        )
    given |= {"model": scenario.name, "rate": tuning.rate_per_s(scenario), "arrivals": SCENARIO}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which all commands have."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print exactly one JSON object on standard output; default: text",
    )


def parsing(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a value parser for argparse, with errors that name what is expected."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            known = KINDS.get(parse) if isinstance(parse, type) else None
            reason = f"{text!r} is not {known}" if known else str(error)
            raise argparse.ArgumentTypeError(reason) from None

    return parse_argument
