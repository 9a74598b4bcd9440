"""Machines of a study: taken before it, opened once its inputs are known."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serving.errors import ServingError
from tuner.errors import NodeLost, UsageError
from tuner.evaluation.evaluator import Evaluator
from tuner.settings.study import StudySettings
from tuner.study.nodes.fleet import StudyNode, check_alike
from tuner.study.nodes.measuring_node import MeasuringNode, facts_with_engine
from tuner.study.preparation import StudyInputs, files_to_keep
from tuner.study.target import Target
from tuner.values.configuration import Configuration

RAY_NODES = "tuner.study.nodes.ray_nodes"
"""Imported late: it needs an extra, and takes two seconds."""


@contextlib.contextmanager
def open_fleet(
    settings: StudySettings,
    target: Target,
    *,
    kind: type[MeasuringNode] = MeasuringNode,
    goes_on: bool = False,
) -> Iterator[list[StudyNode]]:
    """Take the machines of `--workers`, or none; when a study goes on, there may be fewer.

    `kind` is what runs on each.

    Raises:
        UsageError: they cannot be had, or the study is of a running server.
    """
    if settings.search.workers is None:
        yield []
        return
    if settings.target.hook is not None:
        raise UsageError(
            f"--workers {settings.search.workers}: machines that measure at once need an engine on each; "
            f"--engine {settings.target.engine} is one server: leave out --workers"
        )
    ray_nodes = importlib.import_module(RAY_NODES)
    try:
        fleet = ray_nodes.RayFleet.open(
            settings.search.workers,
            settings,
            files_to_keep(settings, target),
            kind=kind,
            goes_on=goes_on,
        )
    except ServingError as error:
        raise UsageError(f"--workers {settings.search.workers}: {error}") from error
    with fleet:
        yield fleet.nodes


def begin_on(nodes: Sequence[StudyNode], evaluator: Evaluator, inputs: StudyInputs) -> list[str]:
    """Start the engines of all machines, and end this one's; return notes.

    Raises:
        UsageError: the machines differ.
    """
    if not nodes:
        return []
    note = evaluator.check_responses()
    evaluator.stop_engine()
    default = inputs.problem.default
    with thread_for_each(nodes) as threads:
        told = list(threads.map(lambda node: open_node(node, default), nodes))
    here = facts_with_engine(inputs.settings.target, inputs.target, inputs.served, inputs.payloads)
    check_alike(
        {"this machine": here} | {node.name: one for node, one in zip(nodes, told, strict=True)}
    )
    return [*filter(None, [note]), *notes_on(nodes)]


def notes_on(nodes: Sequence[StudyNode]) -> Iterator[str]:
    """Yield notes on the machines' use."""
    for node in nodes:
        if node.is_here:
            yield (
                f"`tune` runs on the machine {node.name}, which measures: choosing configurations "
                "for other machines slows it; run `tune` on a machine of the cluster without cores "
                "in it (ray start --num-cpus 0)"
            )


@contextlib.contextmanager
def thread_for_each(nodes: Sequence[StudyNode]) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread for each machine; after an exception, such as of a signal, none is waited for.

    What they wait for ends when the machines are given back.
    """
    threads = ThreadPoolExecutor(len(nodes), thread_name_prefix="node")
    try:
        yield threads
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()


def open_node(node: StudyNode, first: Configuration) -> Mapping[str, Any]:
    """Start a machine's engine (`MeasuringNode.open`), or raise UsageError with its name."""
    try:
        return node.open(first)
    except NodeLost as error:
        raise UsageError(f"--workers: on the machine {node.name}: {error.text}") from error
