"""Export as a Ray Serve application: `ray.yaml` and its program `luthier_app.py`.

Source: Ray Serve's configuration file (ServeDeploySchema).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tuner.errors import UsageError
from tuner.export import container, provenance, templates, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs

FILE_NAME = "ray.yaml"
PROGRAM = "luthier_app.py"
DEPLOYMENT = "Model"
REASONS = {
    "batching.policy": "Ray Serve's batches have a fixed size and wait",
    "batching.slo_ms": "Ray Serve's batching has no objective",
    "cache.capacity_mb": "Ray Serve has no cache",
    "routing.policy": "Ray Serve's router chooses the less loaded of two replicas",
}


def files(subject: ExportInput) -> Files:
    """Configuration and the program."""
    if subject.model.kind == "command":
        raise UsageError(
            f"model {subject.model.name} is a program that speaks Luthier's wire, which "
            "Ray Serve does not; export it with --to compose, kubernetes or kserve"
        )
    knobs = Knobs(subject.advice.configuration)
    body = yaml_text.dump(_configuration(subject, knobs))
    folder = provenance.shell_quote(subject.place.parent)
    told = provenance.lines(
        subject,
        "An application of Ray Serve",
        use=f"cd {folder} && serve run {FILE_NAME}",
        knobs=knobs,
        reasons=REASONS,
        otherwise="not a setting of Ray Serve",
        remarks=_remarks(subject),
    )
    return {
        FILE_NAME: f"{provenance.comments(told)}\n{body}",
        PROGRAM: templates.text(PROGRAM),
    }


def _configuration(subject: ExportInput, knobs: Knobs) -> dict[str, Any]:
    # Ray counts requests of so many items each.
    size = max(1, knobs.whole("batching.max_size") // subject.record.client_batch)
    threads, count = knobs.whole("replica.threads"), knobs.whole("replica.count")
    knobs.take_as("batching.policy", "fixed")
    knobs.take_as("cache.capacity_mb", 0)
    cpu, memory_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    options: dict[str, Any] = {"num_cpus": _reserved_cores(subject, cpu or threads, count)}
    if subject.is_for_gpu:
        options["num_gpus"] = math.floor(100 / count) / 100  # all on one GPU
    if memory_mb is not None:
        options["memory"] = int(memory_mb) * 1024 * 1024
    arguments: dict[str, Any] = {"model": subject.model_elsewhere, "threads": threads}
    if subject.record.is_trusted:
        arguments["trust"] = True
    if subject.variant is not None:
        arguments["variant"] = subject.variant
        knobs.take_variant(subject.variant)
    deployment = {
        "name": DEPLOYMENT,
        "num_replicas": count,
        # One batch running and one waiting; fewer would keep batches small.
        "max_ongoing_requests": 2 * size,
        "max_queued_requests": knobs.whole("scheduling.queue_capacity"),
        "ray_actor_options": options,
        "user_config": {
            "max_batch_size": size,
            "batch_wait_timeout_s": knobs.whole("batching.timeout_us") / 1e6,
        },
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": "luthier",
                "route_prefix": "/",
                "import_path": f"{PROGRAM.removesuffix('.py')}:app",
                "args": arguments,
                "deployments": [deployment],
            }
        ],
    }


def _reserved_cores(subject: ExportInput, cpu: float, count: int) -> float:
    cores = container.cores_of(subject)
    return float(cpu) if cores is None else float(min(cpu, round(cores / count, 2)))


def _remarks(subject: ExportInput) -> Iterator[str]:
    yield "Measured with Luthier's own server; Ray Serve may differ: `tune load` measures it."
    yield f"Every node needs the package {subject.package}, and the model under the name or path below."
    yield "Ray keeps cores and memory free for a replica (num_cpus, memory) and limits it to neither; no more cores"
    yield "than the machine of the study had are kept free for all of them together."
    items = subject.record.client_batch
    each = "one item" if items == 1 else f"{items} items"
    yield f"A batch there counts requests, not items: its size is for requests of {each}, as in the study."
