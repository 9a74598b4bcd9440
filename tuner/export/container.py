"""One container with the whole server: image, arguments, settings and resources.

A container may not create control groups, so only the total of the gateway and the replicas
is enforced, and a replica can use what the others leave.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import textwrap
import types
from collections.abc import Collection, Iterator, Mapping

from serving import __version__
from serving.models import EXTRAS
from serving.zoo import bundled
from tuner.errors import UsageError
from tuner.export import provenance, yaml_text
from tuner.export.export_input import ExportInput, Knobs
from tuner.metrics import server_resources
from tuner.metrics.server_resources import ServerResources
from tuner.values.configuration import Configuration, Value
from tuner.values.study_record import StudyRecord

IMAGE = f"luthier-server:{__version__}"
"""Image that `make images` builds; some model kinds append a dash and their name."""
USER = 65532
PORT, GRPC_PORT = 8000, 8001
SETTINGS = "/settings.yaml"
MODELS = pathlib.PurePosixPath("/model")
READY = "/v2/health/ready"
DRAIN_S = 30
"""Grace period at a stop: `server.drain_s` (20 s), plus time for processes to end."""
START_S = 60
MAX_NAME = 50
"""Maximum length of a name: a Service allows 63 characters, including suffixes."""

OF_FOLDERS = ("tensorflow", "mlflow")
ONE_CONTAINER: Mapping[str, Value] = types.MappingProxyType(
    {"replica.spawner": "process", "replica.limits": "pod"}
)
"""Settings of a server whose replicas are processes of its container."""
NOT_CARRIED = ("accelerator.clock_mhz", "accelerator.share")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlace:
    """Location of the model in the container."""

    argument: str
    source: pathlib.Path | None = None
    """Folder to mount; None if the image contains the model."""
    target: str = ""
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables that locate weights built on this machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Description of the container that runs the server.

    In `arguments` and `variables`, each `$` is already doubled for the exported file.
    """

    name: str
    """Letters, digits and dashes, beginning with a letter (RFC 1035)."""
    image: str
    arguments: list[str]
    variables: dict[str, str]
    model: ModelPlace
    needs: ServerResources
    is_for_gpu: bool
    settings: str
    facts: dict[str, str]
    remarks: list[str]


def describe(
    subject: ExportInput,
    knobs: Knobs,
    models: pathlib.PurePosixPath = MODELS,
    *,
    settings: Mapping[str, Value] = ONE_CONTAINER,
    without: Collection[str] = NOT_CARRIED,
) -> Container:
    """Describe the container, and take the knobs that become its settings.

    Args:
        models: folder for the model.
        settings: of the place, over those of the configuration.
        without: knobs that are not taken.

    Raises:
        UsageError: the model is a module installed only on this machine.
    """
    record, kind = subject.record, subject.model.kind
    model, needed = _place_model(subject, models), needs(subject)
    taken = knobs.take_settings(without=without)
    told = [f"Settings of study {record.name}, mounted at {SETTINGS} in the container."]
    trust = ["--trust"] if record.is_trusted else []
    # All addresses are the container's own: the file publishes its ports.
    network = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
    arguments = ["--model", model.argument, *trust, "--settings", SETTINGS, *network]
    return Container(
        name=name_of(record),
        image=f"{IMAGE}-{kind}" if kind in EXTRAS else IMAGE,
        arguments=list(map(yaml_text.literal, arguments)),
        variables={name: yaml_text.literal(text) for name, text in model.variables.items()},
        model=model,
        needs=needed,
        is_for_gpu=subject.is_for_gpu,
        settings=f"{provenance.comments(told)}\n{yaml_text.dump_settings({**taken, **settings, **record.told})}",
        facts=provenance.facts(subject),
        remarks=list(_remarks(subject, needed, model)),
    )


def name_of(record: StudyRecord) -> str:
    """Return the name of a study's containers and services (RFC 1035)."""
    words = re.sub(r"[^a-z0-9]+", "-", record.model.lower())
    return f"luthier-{words}"[:MAX_NAME].strip("-")


def needs(subject: ExportInput, *, has_cache: bool = True) -> ServerResources:
    """Return the resources for the gateway and all replicas."""
    configuration, kind = subject.advice.configuration, subject.model.kind
    return server_resources.needed_by(
        configuration, kind, cores=cores_of(subject), has_cache=has_cache
    )


def cores_of(subject: ExportInput) -> int | None:
    """Return the study machine's number of cores, or None if unknown."""
    cores = subject.record.environment.get("host", {}).get("cores")
    return cores if isinstance(cores, int) else None


def _remarks(subject: ExportInput, needed: ServerResources, model: ModelPlace) -> Iterator[str]:
    yield from needed.lines
    yield "The kernel holds the container to that sum, and no single replica to its own (replica.limits):"
    measured = ", as when it was measured" if subject.record.limits == "pod" else ""
    yield f"a replica may use what another leaves{measured}. `tune confirm` measures it where it runs."
    if (said := caution(subject.record, subject.advice.configuration)) is not None:
        yield from textwrap.wrap(f"WARNING: {said}", 100)
    kind = subject.model.kind
    yield f"`make images{f' RUNTIMES={kind}' if kind in EXTRAS else ''}` in a clone builds the image."
    if model.source is not None:
        yield f"The model's files must be readable by the image's user, {USER}."
    if subject.is_for_gpu:
        yield "The configuration is for a GPU: the image must hold a runtime that uses one."
    if kind == "command":
        yield "The image must hold what the model's program needs."


def caution(record: StudyRecord, configuration: Configuration) -> str | None:
    """Return a warning that per-replica limits are not enforced, or None without limits."""
    if record.limits == "pod":  # it was measured as it is exported
        return None
    knobs = Knobs(configuration)
    cpu, memory_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    limits = [f"{cpu:g} cores"] if cpu is not None else []
    limits += [f"{memory_mb} MiB"] if memory_mb is not None else []
    if not limits:
        return None
    count = knobs.whole("replica.count")
    where = ", in its own container" if record.spawner == "docker" else ""
    return (
        f"in the study each of {count} replica{'s' * (count > 1)} had {' and '.join(limits)}{where}; "
        "in this export they and the gateway share the sum. Treat the figures of the study as an "
        "estimate until `tune confirm` has measured it; `tune --for kubernetes` measures the sum."
    )


def _place_model(subject: ExportInput, models: pathlib.PurePosixPath) -> ModelPlace:
    given, card = subject.record.target, subject.model
    path, built = card.path, bundled.built_folder("")
    if given in bundled.names():
        if path is None or not path.is_relative_to(built):
            return ModelPlace(argument=given)
        target = str(models / path.parent.relative_to(built.parents[1]))
        variables = {"XDG_CACHE_HOME": str(models)}
        return ModelPlace(argument=given, source=path.parent, target=target, variables=variables)
    is_code = card.kind == "python" and ":" in given
    if path is None or not (is_code or path == pathlib.Path(given)):
        source, file = pathlib.Path(given), ""  # a folder with a model.yaml
    elif not path.is_absolute():
        raise UsageError(
            f"the model {given} is a Python module of this machine, which no image "
            f"contains: build an image with it on top of {IMAGE}, or tune its file "
            "(FILE.py:NAME)"
        )
    elif card.kind in OF_FOLDERS:  # the folder's name is the model's
        source, file = path, ""
    else:
        source, file = path.parent, path.name
    # The folder of a version lies in one with the model's name.
    folder = models.joinpath(*source.parts[-2 if source.name.isdecimal() else -1 :])
    return ModelPlace(argument=str(folder / file), source=source, target=str(folder))
