"""Bare runtimes: a model file run by the library that it is made for, and nothing of ours between.

In: a file and arrays by input name. Out: arrays in the order of the model's outputs; calls per second
of a loop on some cores. `Loop` keeps its processes, loaded and waiting, so that a round costs only its
own seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.synchronize
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

START_TIMEOUT_S = 120.0
Arrays = Mapping[str, NDArray[Any]]
Call = Callable[[Arrays], Sequence[NDArray[Any]]]


class Form(NamedTuple):
    """How a loop uses the cores."""

    processes: int
    threads: int
    """Inside a call."""

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads}"


def _onnx(file: pathlib.Path, threads: int) -> Call:
    onnxruntime = importlib.import_module("onnxruntime")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(None, dict(arrays))


def _torch(file: pathlib.Path, threads: int) -> Call:
    torch = importlib.import_module("torch")

    torch.set_num_threads(threads)
    model = torch.jit.load(str(file), map_location="cpu").eval()

    def call(arrays: Arrays) -> Sequence[NDArray[Any]]:
        given = [torch.from_numpy(each) if each.ndim else each.item() for each in arrays.values()]
        with torch.inference_mode():
            told = model(*given)
        return [each.numpy() for each in (told if isinstance(told, tuple) else (told,))]

    return call


def _xgboost(file: pathlib.Path, threads: int) -> Call:
    xgboost = importlib.import_module("xgboost")

    model = xgboost.Booster({"nthread": threads})
    model.load_model(file)
    return _of_rows(model.inplace_predict)


def _lightgbm(file: pathlib.Path, threads: int) -> Call:
    lightgbm = importlib.import_module("lightgbm")

    model = lightgbm.Booster(model_file=file)
    return _of_rows(lambda rows: model.predict(rows, num_threads=threads))


def _catboost(file: pathlib.Path, threads: int) -> Call:
    catboost = importlib.import_module("catboost")

    model = catboost.CatBoost().load_model(str(file))
    return _of_rows(
        lambda rows: model.predict(rows, prediction_type="Probability", thread_count=threads)
    )


def _sklearn(file: pathlib.Path, threads: int) -> Call:
    skops_io = importlib.import_module("skops.io")

    trusted = skops_io.get_untrusted_types(file=file)
    model = skops_io.load(file, trusted=trusted).set_params(n_jobs=threads)
    return _of_rows(model.predict_proba)


def _of_rows(predict: Callable[[NDArray[Any]], Any]) -> Call:
    """A model of one table, whatever its input is called."""
    return lambda arrays: [np.asarray(predict(next(iter(arrays.values()))))]


RUNTIMES: dict[str, tuple[str, Callable[[pathlib.Path, int], Call]]] = {
    ".onnx": ("onnxruntime", _onnx),
    ".jit": ("torch", _torch),
    ".ubj": ("xgboost", _xgboost),
    ".json": ("xgboost", _xgboost),
    ".txt": ("lightgbm", _lightgbm),
    ".cbm": ("catboost", _catboost),
    ".skops": ("sklearn", _sklearn),
}
"""Suffix of a file of the gallery -> its runtime, by the name of its module, and how it is loaded."""


def runtime(file: pathlib.Path) -> str:
    """Name and version of the library that runs a file."""
    name = RUNTIMES[file.suffix][0]
    return f"{name} {importlib.import_module(name).__version__}"


def loaded(file: pathlib.Path, threads: int) -> Call:
    """The model, to be called."""
    return RUNTIMES[file.suffix][1](file, threads)


class Loop:
    """Processes that call a model for as long as they are told, all of them over the same seconds."""

    def __init__(self, pipes: Sequence[multiprocessing.connection.Connection]) -> None:
        self._pipes = pipes

    def rate(self, seconds: float) -> float:
        """Calls per second of all processes together."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(float(_told(pipe, seconds)) for pipe in self._pipes)


@contextlib.contextmanager
def loop(file: pathlib.Path, requests: Sequence[Arrays], form: Form) -> Iterator[Loop]:
    """Start the processes, wait until all are warm, and end them behind the block.

    Raises:
        RuntimeError: a process did not come up, or died.
    """
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    try:
        for _ in range(form.processes):
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_work, args=(theirs, file, list(requests), form.threads), daemon=True
            )
            worker.start()
            theirs.close()
            pipes.append(ours)
            workers.append(worker)
        for pipe in pipes:
            _told(pipe, 0.0)
        yield Loop(pipes)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def _told(pipe: multiprocessing.connection.Connection, seconds: float) -> float:
    if not pipe.poll(seconds + START_TIMEOUT_S):
        raise RuntimeError("a process of the bare loop does not answer")
    try:
        told = pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the bare loop died; what it said stands above") from None
    return float(told)


def _work(
    pipe: multiprocessing.connection.Connection,
    file: pathlib.Path,
    requests: list[Arrays],
    threads: int,
) -> None:
    """One process: loads, warms up, and then runs on every word of the pipe."""
    call = loaded(file, threads)
    for request in requests[:3]:
        call(request)
    pipe.send(0.0)
    while True:
        seconds = pipe.recv()
        begin_s = now_s = time.perf_counter()
        calls = 0
        while now_s - begin_s < seconds:
            call(requests[calls % len(requests)])
            calls += 1
            now_s = time.perf_counter()
        pipe.send(calls / (now_s - begin_s))
