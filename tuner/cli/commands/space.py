"""`tune space`: probe a model and write a search space for review."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib

from tuner.cli.commands import CommandResult, options
from tuner.errors import UsageError
from tuner.evaluation import probe
from tuner.evaluation.evaluator import Evaluator
from tuner.launching import machine
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.space import files
from tuner.store.run_folder import storage_errors
from tuner.study import problem
from tuner.study.interruption import resumable
from tuner.study.preparation import start_target
from tuner.study.progress import Terminal

TARGET = (*options.REQUESTS, "model", "trust", "spawner", "engine", "hook")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_group(parser, "target", only=TARGET)
    told = "file to write; default: MODEL.yaml in the current folder"
    options.add_value(parser, "--out", "FILE", told, parse=pathlib.Path)
    options.add_flag(parser, "--force", "overwrite an existing file; default: refuse")


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    target = options.group_of(arguments, TargetSettings)
    if target.is_of_other_engine:
        raise UsageError(
            f"--engine {target.engine}: a search space can only be derived for Luthier; "
            "write it as docs/engines.md shows"
        )
    card = problem.find_spec(target.model, is_trusted=target.trust)
    out: pathlib.Path = arguments.out or pathlib.Path(f"{card.name}.yaml")
    if out.exists() and not arguments.force:
        raise UsageError(f"{out} exists: name another --out, or overwrite it with --force")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        missing = "" if out.parent.is_dir() else f": no such folder: {out.parent}"
        raise UsageError(f"--out {out} cannot be written{missing}")
    environment = problem.environment_of(target, machine.read(), card)
    settings = dataclasses.replace(MeasurementSettings(), warmup_s=0.3)
    evaluator = Evaluator(
        model=target.model,
        concurrency=target.in_flight,
        settings=settings,
        launcher=problem.launcher_of(target),
    )
    with resumable(None), evaluator:
        served = start_target(evaluator)
        evaluator.send(problem.payloads_of(target, card, served, seed=0))
        environment = problem.with_gpu(environment, None, device=served.device)
        terminal.say(f"probing {served.model} at a few batch sizes, about ten seconds")
        text = probe.text(evaluator, environment, served)
    space = files.parse(text, file=str(out))
    cells = len(space.candidates(environment))
    with storage_errors(str(out), option="--out"):
        partial = out.with_name(out.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    return CommandResult(
        text=f"{out}: {len(space.knobs)} knobs, {cells} different configurations here; review "
        "the ranges",
        data={"file": str(out), "candidates": cells, "knobs": [knob.name for knob in space.knobs]},
    )
