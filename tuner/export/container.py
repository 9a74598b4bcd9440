"""One container with the whole server in it: gateway and replicas as processes, one sum of limits.

In: the subject, its knobs. Out: image, arguments, settings, and what the container needs. Shared by
the targets that run our own image. Pure.

In one container only the sum is held by the kernel: making groups of its own takes rights that such
a container does not have. So the limit is what gateway and replicas need together, and a replica
can use what another leaves; the server says "limits are not enforced" at its start.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
from collections.abc import Iterator

from serving import __version__, zoo
from serving.models import EXTRAS
from tuner.errors import WrongUse
from tuner.export import head, serving, yaml_text
from tuner.export.subject import Knobs, Subject

IMAGE = f"luthier-server:{__version__}"
"""What `make images` builds; for kinds with a runtime of their own with a dash and the kind behind it."""
USER = 65532
"""User and group in the image."""
GPU = "nvidia.com/gpu"
OF_THE_MACHINE = ("accelerator.clock_mhz", "accelerator.share")
"""What a server without rights cannot set: the clock, and what takes the daemon of CUDA MPS."""
PORT, GRPC_PORT = 8000, 8001
SETTINGS = "/settings.yaml"
MODELS = pathlib.PurePosixPath("/model")
"""Where a model that is not in the image is mounted."""
READY, LIVE = "/v2/health/ready", "/v2/health/live"
DRAIN_S = 30
"""The server ends within `server.drain_s`, 20 s; then some more for its processes."""
START_S = 60
"""Twice `replica.ready_timeout_s`."""
WIDTH = 100
"""Of a line of the head."""
MOST_NAME = 50
"""A Service may be named by 63 characters; something may be put behind it."""

GATEWAY_CPU = 1.0
"""The gateway is one thread, so that it never uses more than a core."""
GATEWAY_MB = 256
"""Gateway and template: 75 to 140 MiB measured with the bundled models, and requests on their way."""
OF_FOLDERS = ("tensorflow", "mlflow")
"""Kinds whose models are folders."""
RUNTIME_MB = {
    "torch": 512,
    "tensorflow": 768,
    "xgboost": 128,
    "lightgbm": 128,
    "catboost": 128,
    "mlflow": 256,
}
"""Kinds whose runtime is larger, which the template holds: this much more."""
TEMPORARY_MB = 64
"""Files in /tmp are memory, too; the server keeps sockets and little else there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one server needs as a whole."""

    cpu: float
    """Cores."""
    memory_mb: int | None
    """MiB; None where the study sets no limit of memory."""
    lines: tuple[str, ...]
    """How they were reckoned."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A model that is not in the image."""

    source: pathlib.Path
    """Folder on this machine."""
    target: str
    """Folder in the container."""


def needs(subject: Subject, *, has_cache: bool = True) -> Needs:
    """CPU and memory of gateway and replicas together; `has_cache`: and of the gateway's cache."""
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
        lines.append(f"The machine of the study had {cores}, so no more than these were measured.")
    limit_mb, cache_mb = knobs.maybe("replica.memory_mb"), 0
    if has_cache:
        cache_mb = knobs.whole("cache.capacity_mb")
    if limit_mb is None:
        lines.append("Memory: the study sets no limit, so none is set here.")
        return Needs(cpu=cpu, memory_mb=None, lines=tuple(lines))
    own_mb = GATEWAY_MB + RUNTIME_MB.get(subject.model.kind, 0) + cache_mb
    memory_mb = int(count * limit_mb + own_mb + TEMPORARY_MB)
    cached = f" (its cache {cache_mb})" if cache_mb else ""
    lines.append(
        f"Memory: {count} x {limit_mb} of the replicas + {own_mb} of gateway and template{cached} "
        f"+ {TEMPORARY_MB} of /tmp = {memory_mb} MiB."
    )
    return Needs(cpu=cpu, memory_mb=memory_mb, lines=tuple(lines))


def cores_of(subject: Subject) -> int | None:
    """Of the machine of the study; None where it is not known."""
    cores = subject.record.environment.get("host", {}).get("cores")
    return cores if isinstance(cores, int) else None


def remarks(subject: Subject, needed: Needs) -> Iterator[str]:
    """What must be known of the container."""
    yield from needed.lines
    yield "The kernel holds the container to that sum; replica.cpu and replica.memory_mb of the single"
    yield "replica are not enforced in it (the server says so): one may use what another leaves."
    if (said := caution(subject)) is not None:
        yield from textwrap.wrap(f"WARNING: {said}", WIDTH)
    runtimes = f" RUNTIMES={subject.model.kind}" if subject.model.kind in EXTRAS else ""
    yield f"`make images{runtimes}` in a clone builds the image."
    if _built(subject) is not None or _named(subject) is not None:
        yield f"The model's files must be readable by the image's user, {USER}."
    if subject.is_for_gpu:
        yield "The configuration is for a GPU: the image must hold a runtime that uses one."
    if subject.model.kind == "command":
        yield "The image must hold what the model's program needs."


def caution(subject: Subject) -> str | None:
    """That limits of single replicas were measured, which the container has not; None where there were none."""
    knobs = Knobs(subject.advice.configuration)
    cpu, memory_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    limits = [f"{cpu:g} cores"] if cpu is not None else []
    limits += [f"{memory_mb} MiB"] if memory_mb is not None else []
    if not limits:
        return None
    count = knobs.whole("replica.count")
    where = ", in a container of its own" if subject.record.home == "docker" else ""
    return (
        f"this is another machine than the one that was measured. In the study each of {count} "
        f"replica{'s' * (count > 1)} had {' and '.join(limits)}{where}; here they and the gateway share the "
        "sum. Take the figures of the study as a guess until `tune load` has measured this one."
    )


def settings_text(subject: Subject, knobs: Knobs) -> str:
    """The file that is mounted at `SETTINGS`, with all knobs that are settings."""
    taken = knobs.take_settings(without=OF_THE_MACHINE)
    settings = {**taken, "replica.home": "process", **subject.record.told}
    told = [f"Settings of study {subject.record.name}, mounted at {SETTINGS} in the container."]
    return f"{head.comments(told)}\n{yaml_text.dump(serving.nested(settings))}"


def mount(subject: Subject, folder: pathlib.PurePosixPath = MODELS) -> Mount | None:
    """The model's folder, where the model is not in the image.

    The whole folder, because models read what lies beside them: samples, weights, other modules.

    Raises:
        WrongUse: the model is a module that is installed on this machine alone.
    """
    built = _built(subject)
    if built is not None:
        place = built.relative_to(zoo.built_folder("").parents[1])
        return Mount(source=built, target=str(folder / place))
    named = _named(subject)
    if named is None:
        return None
    source, _ = named
    return Mount(source=source, target=str(folder.joinpath(*_kept(source))))


def environment(subject: Subject, folder: pathlib.PurePosixPath = MODELS) -> dict[str, str]:
    """Variables of the server: where it finds the weights of a bundled model that no image has."""
    return {} if _built(subject) is None else {"XDG_CACHE_HOME": str(folder)}


def image(subject: Subject) -> str:
    """The image that runs the model's kind."""
    kind = subject.model.kind
    return f"{IMAGE}-{kind}" if kind in EXTRAS else IMAGE


def arguments(subject: Subject, folder: pathlib.PurePosixPath = MODELS) -> list[str]:
    """Of `python -m serving` in the container."""
    named = _named(subject)
    model = subject.record.target
    if named is not None:
        source, file = named
        model = str(folder.joinpath(*_kept(source), *([file] if file else [])))
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


def name_of(subject: Subject) -> str:
    """A name that every system takes: letters, digits and dashes, a letter first (RFC 1035)."""
    words = re.sub(r"[^a-z0-9]+", "-", subject.record.model.lower())
    return f"luthier-{words}"[:MOST_NAME].strip("-")


def _built(subject: Subject) -> pathlib.Path | None:
    """Folder of the weights of a bundled model that were built on this machine; None for any other model."""
    path = subject.model.path
    is_built = path is not None and path.is_relative_to(zoo.built_folder(""))
    return path.parent if path is not None and is_built else None


def _named(subject: Subject) -> tuple[pathlib.Path, str | None] | None:
    """Folder of the model, and its file in there; None for a model of the image."""
    given, card = subject.record.target, subject.model
    if given in zoo.names():
        return None
    path = card.path
    is_code = card.kind == "python" and ":" in given
    if path is None or not (is_code or path == pathlib.Path(given)):
        return pathlib.Path(given), None  # a folder with a model.yaml
    if not path.is_absolute():
        raise WrongUse(
            f"the model {given} is a module of this machine's Python, which no image has: build an image "
            f"with it on top of {IMAGE}, or tune its file (FILE.py:NAME)"
        )
    # The folder that a framework wrote tells the model's name; a file stands in one.
    return (path, None) if card.kind in OF_FOLDERS else (path.parent, path.name)


def _kept(source: pathlib.Path) -> tuple[str, ...]:
    """The part of a folder's path from which a model's name and version are told."""
    return source.parts[-2:] if source.name.isdecimal() else source.parts[-1:]
