"""Settings as options of a command line, and back; an option and its help come from the setting
itself.

In: a group of `tuner.settings`. Out: arguments of a parser, or the group with what was given. A
field without a default is required.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from serving.errors import nearest
from tuner.errors import WrongUse
from tuner.scenarios import files as scenario_files
from tuner.scenarios import tuned
from tuner.settings import (
    GROUPS,
    SCENARIO,
    SCENARIO_S,
    MeasurementSettings,
    StudySettings,
    options,
)

Group = TypeVar("Group")
ArgumentGroup = argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it

TITLES = {
    "target": "what is tuned",
    "search": "the search",
    "measurement": "the measurement",
    "store": "where results are kept",
}
KINDS = {int: "a whole number", float: "a number"}


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, raised instead of printed."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            WrongUse: always.
        """
        raise WrongUse(f"{message}; see {self.prog} --help")

    def parse_all(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, and name the nearest option for one that is not known.

        Raises:
            WrongUse: the command line is wrong.
        """
        known = [flag for action in self._actions for flag in action.option_strings]
        for given in arguments:  # a misspelt option is named before the one that is missing for it
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
    """Add the options of a group of settings; returns the group of the parser.

    Args:
        parser: of a command.
        name: a key of `tuner.settings.GROUPS`.
        only: fields to add; all without it.
        but: fields not to add.
        instead: defaults of this command, by field, instead of the settings' own.
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
    """The group of settings that was given, with defaults for the rest.

    Raises:
        WrongUse: a value is out of its range.
    """
    names = [field.name for field, _ in options(kind)]
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def settings_of(arguments: argparse.Namespace) -> StudySettings:
    """All groups.

    Raises:
        WrongUse: a value is out of its range, or there is nothing to tune.
    """
    take_scenario(arguments)
    return StudySettings(**{name: group_of(arguments, kind) for name, kind in GROUPS.items()})


def take_scenario(arguments: argparse.Namespace) -> None:
    """Put what a scenario says into the options that were not given.

    Raises:
        WrongUse: the scenario cannot be tuned, an option contradicts it, or neither it nor a model was given.
    """
    given = vars(arguments)
    file = given.get("scenario")
    if file is None:
        if "model" not in given:
            raise WrongUse("what is tuned? give --model NAME|FILE, or --scenario FILE")
        return
    for name in ("model", "rate", "arrivals"):
        if name in given:
            raise WrongUse(
                f"--{name} {given[name]}: not with --scenario, which says what is served, and what is asked of it"
            )
    scenario = scenario_files.read(pathlib.Path(file).absolute())  # as a study parses it
    given.setdefault("objective", "goodput")
    given.setdefault("seconds", SCENARIO_S)
    warmup_s = given.get("warmup_s", MeasurementSettings().warmup_s)
    tuned.check(scenario, seconds=warmup_s + given["seconds"])
    deadline_ms = tuned.deadline_ms(scenario)
    if given.setdefault("slo_ms", deadline_ms) != deadline_ms:
        raise WrongUse(
            f"--slo-ms {given['slo_ms']:g}: the requests of the scenario carry their deadline, {deadline_ms:g} ms; "
            "change it there"
        )
    given |= {"model": scenario.name, "rate": tuned.rate_per_s(scenario), "arrivals": SCENARIO}


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that all commands have."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print one JSON object on standard output and nothing else there; default: text",
    )


def parsing(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of one value whose complaint says what was expected, for `add_argument(type=...)`."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            known = KINDS.get(parse) if isinstance(parse, type) else None
            reason = f"{text!r} is not {known}" if known else str(error)
            raise argparse.ArgumentTypeError(reason) from None

    return parsed
