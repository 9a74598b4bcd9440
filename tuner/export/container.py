"""One container with the whole server: image, arguments, settings and resources.

A container may not create control groups, so only the total is enforced, over gateway and replicas
together, and a replica can use what others leave.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

from serving import __version__
from serving.models import EXTRAS
from serving.zoo import bundled
from tuner.errors import UsageError
from tuner.export import provenance, serving, yaml_text
from tuner.export.export_input import ExportInput, Knobs

IMAGE = f"luthier-server:{__version__}"
"""Image of `make images`; some kinds append a dash and their name."""
USER = 65532
GPU = "nvidia.com/gpu"
OF_THE_MACHINE = ("accelerator.clock_mhz", "accelerator.share")
PORT, GRPC_PORT = 8000, 8001
SETTINGS = "/settings.yaml"
MODELS = pathlib.PurePosixPath("/model")
READY, LIVE = "/v2/health/ready", "/v2/health/live"
DRAIN_S = 30
"""`server.drain_s` (20 s) plus time for the processes."""
START_S = 60
WIDTH = 100
MAX_NAME = 50
"""A Service allows 63 characters, suffixes included."""

GATEWAY_CPU = 1.0
GATEWAY_MB = 256
"""Gateway and fork server: 75 to 140 MiB, plus requests."""
OF_FOLDERS = ("tensorflow", "mlflow")
RUNTIME_MB = {
    "torch": 512,
    "tensorflow": 768,
    "xgboost": 128,
    "lightgbm": 128,
    "catboost": 128,
    "mlflow": 256,
}
TEMPORARY_MB = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequirements:
    """Resources of one server."""

    cpu: float
    memory_mb: int | None
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A model that is not in the image."""

    source: pathlib.Path
    target: str


def needs(subject: ExportInput, *, has_cache: bool = True) -> ResourceRequirements:
    """Resources of gateway and replicas."""
    knobs = Knobs(subject.advice.configuration)
    count = knobs.whole("replica.count")
    each = knobs.maybe("replica.cpu")
    told = f"{count} x {each:g}" if each is not None else ""
    if each is None:
        each = knobs.whole("replica.threads")
        told = f"{count} x {each:g} (a core for each thread, as the study sets no limit)"
    cpu = count * each + GATEWAY_CPU
    lines = [f"CPU: {told} of the replicas + {GATEWAY_CPU:g} of the gateway = {cpu:g} cores."]
    cores = cores_of(subject)
    if cores is not None and cpu > cores:
        cpu = float(cores)
        lines.append(f"The study's machine had {cores}, so no more were measured.")
    limit_mb, cache_mb = knobs.maybe("replica.memory_mb"), 0
    if has_cache:
        cache_mb = knobs.whole("cache.capacity_mb")
    if limit_mb is None:
        lines.append("Memory: the study sets no limit, so none is set here.")
        return ResourceRequirements(cpu=cpu, memory_mb=None, lines=tuple(lines))
    own_mb = GATEWAY_MB + RUNTIME_MB.get(subject.model.kind, 0) + cache_mb
    memory_mb = int(count * limit_mb + own_mb + TEMPORARY_MB)
    cached = f" (its cache {cache_mb})" if cache_mb else ""
    lines.append(
        f"Memory: {count} x {limit_mb} of the replicas + {own_mb} of gateway and template{cached} "
        f"+ {TEMPORARY_MB} of /tmp = {memory_mb} MiB."
    )
    return ResourceRequirements(cpu=cpu, memory_mb=memory_mb, lines=tuple(lines))


def cores_of(subject: ExportInput) -> int | None:
    """The study machine's cores, or None if unknown."""
    cores = subject.record.environment.get("host", {}).get("cores")
    return cores if isinstance(cores, int) else None


def remarks(subject: ExportInput, needed: ResourceRequirements) -> Iterator[str]:
    """Yield notes about the container."""
    yield from needed.lines
    yield "The kernel holds the container to that sum; replica.cpu and replica.memory_mb of the single"
    yield (
        "replica are not enforced in it (the server logs this): a replica may use what "
        "another leaves."
    )
    if (said := caution(subject)) is not None:
        yield from textwrap.wrap(f"WARNING: {said}", WIDTH)
    runtimes = f" RUNTIMES={subject.model.kind}" if subject.model.kind in EXTRAS else ""
    yield f"`make images{runtimes}` in a clone builds the image."
    if _built_folder(subject) is not None or _model_location(subject) is not None:
        yield f"The model's files must be readable by the image's user, {USER}."
    if subject.is_for_gpu:
        yield "The configuration is for a GPU: the image must hold a runtime that uses one."
    if subject.model.kind == "command":
        yield "The image must hold what the model's program needs."


def caution(subject: ExportInput) -> str | None:
    """Warning that per-replica limits do not hold here, or None."""
    knobs = Knobs(subject.advice.configuration)
    cpu, memory_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    limits = [f"{cpu:g} cores"] if cpu is not None else []
    limits += [f"{memory_mb} MiB"] if memory_mb is not None else []
    if not limits:
        return None
    count = knobs.whole("replica.count")
    where = ", in its own container" if subject.record.spawner == "docker" else ""
    return (
        "this is another machine than the one that was measured. In the study each of "
        f"{count} replica{'s' * (count > 1)} had {' and '.join(limits)}{where}; here they "
        "and the gateway share the sum. Treat the figures of the study as an estimate "
        "until `tune load` has measured this machine."
    )


def settings_text(subject: ExportInput, knobs: Knobs) -> str:
    """Settings file for `SETTINGS`."""
    taken = knobs.take_settings(without=OF_THE_MACHINE)
    settings = {**taken, "replica.spawner": "process", **subject.record.told}
    told = [f"Settings of study {subject.record.name}, mounted at {SETTINGS} in the container."]
    return f"{provenance.comments(told)}\n{yaml_text.dump(serving.group_settings(settings))}"


def mount(subject: ExportInput, folder: pathlib.PurePosixPath = MODELS) -> Mount | None:
    """Mount of a model outside the image: its whole folder.

    Raises:
        UsageError: the model is a module installed only on this machine.
    """
    built = _built_folder(subject)
    if built is not None:
        place = built.relative_to(bundled.built_folder("").parents[1])
        return Mount(source=built, target=str(folder / place))
    named = _model_location(subject)
    if named is None:
        return None
    source, _ = named
    return Mount(source=source, target=str(folder.joinpath(*_name_parts(source))))


def environment(subject: ExportInput, folder: pathlib.PurePosixPath = MODELS) -> dict[str, str]:
    """Variables that locate built weights."""
    return {} if _built_folder(subject) is None else {"XDG_CACHE_HOME": str(folder)}


def image(subject: ExportInput) -> str:
    """Image for the model kind."""
    kind = subject.model.kind
    return f"{IMAGE}-{kind}" if kind in EXTRAS else IMAGE


def arguments(subject: ExportInput, folder: pathlib.PurePosixPath = MODELS) -> list[str]:
    """Arguments of `python -m serving` in the container."""
    named = _model_location(subject)
    model = subject.record.target
    if named is not None:
        source, file = named
        model = str(folder.joinpath(*_name_parts(source), *([file] if file else [])))
    return [
        "--model",
        model,
        *(["--trust"] if subject.record.is_trusted else []),
        "--settings",
        SETTINGS,
        "--host",
        "0.0.0.0",  # noqa: S104 - of the container, whose ports are published by the file
        "--port",
        str(PORT),
    ]


def name_of(subject: ExportInput) -> str:
    """Name of letters, digits and dashes, letter first (RFC 1035)."""
    words = re.sub(r"[^a-z0-9]+", "-", subject.record.model.lower())
    return f"luthier-{words}"[:MAX_NAME].strip("-")


def _built_folder(subject: ExportInput) -> pathlib.Path | None:
    path = subject.model.path
    is_built = path is not None and path.is_relative_to(bundled.built_folder(""))
    return path.parent if path is not None and is_built else None


def _model_location(subject: ExportInput) -> tuple[pathlib.Path, str | None] | None:
    given, card = subject.record.target, subject.model
    if given in bundled.names():
        return None
    path = card.path
    is_code = card.kind == "python" and ":" in given
    if path is None or not (is_code or path == pathlib.Path(given)):
        return pathlib.Path(given), None  # a folder with a model.yaml
    if not path.is_absolute():
        raise UsageError(
            f"the model {given} is a Python module of this machine, which no image "
            f"contains: build an image with it on top of {IMAGE}, or tune its file "
            "(FILE.py:NAME)"
        )
    # The name of such a folder is the model's name; a file lies in one.
    return (path, None) if card.kind in OF_FOLDERS else (path.parent, path.name)


def _name_parts(source: pathlib.Path) -> tuple[str, ...]:
    return source.parts[-2:] if source.name.isdecimal() else source.parts[-1:]
