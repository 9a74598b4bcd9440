"""Command line of `python -m serving`.

Exit codes: 0 if stopped normally, 1 if serving failed, 2 for an unknown option, setting or model.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import yaml

from serving import __version__, form, zoo
from serving.app import gateway
from serving.app.gateways import Gateways
from serving.app.server import Server
from serving.error_text import nearest, one_line
from serving.errors import InvalidSettings, ModelMissing, ServingError
from serving.model_spec import ModelSpec
from serving.settings.sources import resolve
from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem
from serving.system.log_lines import log_lines
from serving.zoo import bundled

PROGRAM = "python -m serving"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        before, is_unknown, given = message.partition("unrecognized arguments: ")
        if is_unknown and not before:
            flag = given.split()[0]
            known = [name for action in self._actions for name in action.option_strings]
            message = f"unknown argument {flag!r}{nearest(flag, known)}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    options = _Parser(prog=program, description="Serve models over the Open Inference Protocol v2.")
    options.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="bundled model, model file or folder; repeatable",
    )
    options.add_argument(
        "--model-repository",
        type=pathlib.Path,
        metavar="DIR",
        help="watched folder of models with numbered versions: DIR/MODEL/NUMBER/",
    )
    options.add_argument(
        "--allow-empty",
        action="store_true",
        help="start without models, which are deployed through the admin port later",
    )
    options.add_argument(
        "--kind",
        help="kind of models whose files do not identify it, such as command (docs/models.md)",
    )
    options.add_argument(
        "--trust",
        action="store_true",
        help="allow models of --model that run code from their files when loaded, such as "
        "MLflow pickles; only for files that you trust",
    )
    options.add_argument(
        "--settings",
        type=pathlib.Path,
        metavar="FILE",
        help="YAML file of settings (docs/settings.md)",
    )
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one setting by its dotted name, such as batching.max_size=16; repeatable",
    )
    _add_ports(options)
    options.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="lowest level logged to stderr (default info)",
    )
    options.add_argument("--version", action="version", version=f"luthier {__version__} ({form()})")
    return options


def _add_ports(options: argparse.ArgumentParser) -> None:
    options.add_argument("--host", help="address of the inference port (default 127.0.0.1)")
    options.add_argument(
        "--port", type=int, help="inference port (default 8000, with gRPC on 8001; 0: free ports)"
    )
    options.add_argument(
        "--admin-port",
        type=int,
        help="admin port (default 8002, or a free one with --port 0; 0: a free port)",
    )
    options.add_argument(
        "--no-admin-token",
        action="store_true",
        help="require no token on the admin port: every user and container that reaches it "
        "may run code as this user (docs/security.md)",
    )


def _command_line(arguments: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in arguments.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidSettings(f"--set {text!r}: expected NAME=VALUE, as batching.max_size=16")
        try:
            values[name.strip()] = bounded_yaml.parse(value)
        except (yaml.YAMLError, ValueError) as error:
            raise InvalidSettings(
                f"--set {name}: {value!r:.200} is not a YAML value: {yaml_problem(error)}"
            ) from error
    for option, name in (
        ("host", "server.host"),
        ("port", "server.port"),
        ("admin_port", "server.admin_port"),
    ):
        if getattr(arguments, option) is not None:
            values[name] = getattr(arguments, option)
    if arguments.no_admin_token:
        values["server.admin_access"] = "open"
    return values


def _specs(
    models: Sequence[str],
    repository: pathlib.Path | None,
    *,
    kind: str | None,
    allow_empty: bool,
    is_trusted: bool,
) -> list[ModelSpec]:
    if not models and repository is None and not allow_empty:
        raise InvalidSettings(
            f"no model to serve; give --model (bundled: {', '.join(bundled.names())}), a "
            "folder with --model-repository, or --allow-empty"
        )
    specs: dict[str, ModelSpec] = {}
    for text in models:
        spec = zoo.find(text, kind=kind, is_trusted=is_trusted)
        if spec.name in specs:
            raise InvalidSettings(f"--model {text}: another model is already named {spec.name!r}")
        specs[spec.name] = spec
    return list(specs.values())


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command under the name `program` and return its exit code."""
    arguments = parser(program).parse_args(argv)
    log_lines(arguments.log_level.upper())
    try:
        settings = resolve(file=arguments.settings, command_line=_command_line(arguments))
        specs = _specs(
            arguments.model,
            arguments.model_repository,
            kind=arguments.kind,
            allow_empty=arguments.allow_empty,
            is_trusted=arguments.trust,
        )
    except ServingError as error:
        sys.stderr.write(f"{program}: {one_line(error)}\n")
        return 2

    try:
        if settings.server.gateways == 1:
            gateway.run(lambda: Server(specs, settings, repository=arguments.model_repository))
        else:
            level = arguments.log_level.upper()
            asyncio.run(Gateways(specs, settings, arguments.model_repository, level=level).run())
    except ServingError as error:
        sys.stderr.write(f"{program}: {one_line(error)}\n")
        is_wrong_use = isinstance(error, InvalidSettings | ModelMissing)
        return 2 if is_wrong_use else 1
    return 0
