"""Conversion of settings groups to command-line options and back.

The setting defines option and help. A field without a default is required.
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
from tuner.settings.store import StoreSettings
from tuner.settings.study import GROUPS, StudySettings
from tuner.settings.workload import SCENARIO
from tuner.store import run_folder
from tuner.store.run_folder import RunFolder

Group = TypeVar("Group")
ArgumentGroup = argparse._ArgumentGroup  # noqa: SLF001 - argparse has no public name for it

TITLES = {
    "target": "target",
    "search": "search",
    "measurement": "measurement",
    "store": "storage",
}
REQUESTS = ("concurrency", "client_batch", "payload", "shape", "values")
"""Target settings that define the requests of a closed loop."""
KINDS = {int: "a whole number", float: "a number"}


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises one-line errors instead of printing them."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def parse_all(self, arguments: list[str]) -> argparse.Namespace:
        """Parse the arguments, or raise a UsageError that suggests an option for an unknown one."""
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


def add_value(
    parser: argparse.ArgumentParser | ArgumentGroup,
    flag: str,
    metavar: str | None,
    told: str,
    *,
    parse: Callable[[str], Any] = str,
    **more: Any,
) -> None:
    """Add an option that takes a value and defaults to None."""
    told = told.replace("%", "%%")
    parser.add_argument(flag, metavar=metavar, type=parsing(parse), help=told, **more)


def add_flag(
    parser: argparse.ArgumentParser | ArgumentGroup, flag: str, told: str, **more: Any
) -> None:
    """Add an option that takes no value."""
    parser.add_argument(flag, action="store_true", help=told.replace("%", "%%"), **more)


def add_study(parser: argparse.ArgumentParser, *store: str) -> None:
    """Add a positional study name, and options for its storage."""
    parser.add_argument("study_name", metavar="STUDY", help="name of the study, or its folder")
    add_group(parser, "store", only=store)


def find_study(arguments: argparse.Namespace) -> RunFolder:
    """Return the folder of the study that the arguments name, or raise UnknownStudy."""
    where = group_of(arguments, StoreSettings)
    return run_folder.find(pathlib.Path(where.runs_dir), arguments.study_name)


def add_group(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    only: Iterable[str] | None = None,
    but: Iterable[str] = (),
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> ArgumentGroup:
    """Add a group of settings and return the parser's group; `instead` overrides defaults."""
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
        default = instead.get(field.name, argparse.SUPPRESS)
        if option.is_flag:
            add_flag(group, option.flag, told, dest=field.name, default=default)
            continue
        add_value(
            group,
            option.flag,
            option.metavar,
            told,
            parse=option.parse,
            action="append" if option.is_repeated else "store",
            dest=field.name,
            required=is_needed,
            default=default,
            choices=option.choices,
        )
    return group


def action_of(group: ArgumentGroup, name: str) -> argparse.Action:
    """Return the action of a field's option, for the caller to change."""
    return next(action for action in group._group_actions if action.dest == name)  # noqa: SLF001 - argparse has no public name for them


def group_of(arguments: argparse.Namespace, kind: type[Group]) -> Group:
    """Return a group of settings from the arguments, or raise UsageError."""
    names = [field.name for field, _ in options(kind)]
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})


def settings_of(arguments: argparse.Namespace) -> StudySettings:
    """Return all groups of settings from the arguments, or raise UsageError."""
    take_scenario(arguments)
    return StudySettings(**{name: group_of(arguments, kind) for name, kind in GROUPS.items()})


def take_scenario(arguments: argparse.Namespace) -> None:
    """Fill in the options that were not given, with the scenario's values.

    Raises:
        UsageError: the scenario is invalid, an option contradicts it, or there is no target.
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
    told = "print exactly one JSON object on standard output; default: text"
    add_flag(parser, "--json", told, default=argparse.SUPPRESS)


def parsing(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a value's parser for argparse, so that errors name what is expected."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            known = KINDS.get(parse) if isinstance(parse, type) else None
            reason = f"{text!r} is not {known}" if known else str(error)
            raise argparse.ArgumentTypeError(reason) from None

    return parse_argument
