"""Export as a Ray Serve application: `ray.yaml` and its program `luthier_app.py`.

Source: Ray Serve's configuration file (ServeDeploySchema).
"""

from __future__ import annotations

import math
from typing import Any

from tuner.export import container, provenance, yaml_text
from tuner.export.export_input import VARIANT, ExportInput, Files, Knobs, program

FILE_NAME = "ray.yaml"
PROGRAM = "luthier_app.py"
REASONS = {
    "batching.policy": "Ray Serve's batches have a fixed size and wait",
    "batching.slo_ms": "Ray Serve's batching has no objective",
    "cache.capacity_mb": "Ray Serve has no cache",
    "routing.policy": "Ray Serve's router chooses the less loaded of two replicas",
}


def files(subject: ExportInput) -> Files:
    """Return the configuration and the program."""
    subject.refuse_program("Ray Serve does not")
    knobs = Knobs(subject.advice.configuration)
    body = yaml_text.dump(_configuration(subject, knobs))
    items = subject.record.client_batch
    each = "one item" if items == 1 else f"{items} items"
    head = provenance.head(
        subject,
        "An application of Ray Serve",
        use=f"cd {subject.quoted()} && serve run {FILE_NAME}",
        knobs=knobs,
        reasons=REASONS,
        otherwise="not a setting of Ray Serve",
        remarks=[
            "Measured with Luthier's own server; Ray Serve may differ: `tune load` measures it.",
            f"Every node needs the package {subject.package}, and the model under the name or path below.",
            "Ray keeps cores and memory free for a replica (num_cpus, memory) and limits it to neither; no more cores",
            "than the machine of the study had are kept free for all of them together.",
            f"A batch there counts requests, not items: its size is for requests of {each}, as in the study.",
        ],
    )
    return {FILE_NAME: head + body, PROGRAM: program(PROGRAM)}


def _configuration(subject: ExportInput, knobs: Knobs) -> dict[str, Any]:
    # Ray counts requests of so many items each.
    size = max(1, knobs.whole("batching.max_size") // subject.record.client_batch)
    if not subject.is_batched:
        size = 1
    threads, count = knobs.whole("replica.threads"), knobs.whole("replica.count")
    knobs.take_as("batching.policy", "fixed")
    knobs.take_as("cache.capacity_mb", 0)
    cpu, memory_mb = knobs.maybe("replica.cpu"), knobs.maybe("replica.memory_mb")
    cpu, cores = cpu or threads, container.cores_of(subject)
    if cores is not None:
        cpu = min(cpu, round(cores / count, 2))
    options: dict[str, Any] = {"num_cpus": float(cpu)}
    if subject.is_for_gpu:
        options["num_gpus"] = math.floor(100 / count) / 100  # all on one GPU
    if memory_mb is not None:
        options["memory"] = int(memory_mb) * 1024 * 1024
    arguments: dict[str, Any] = {"model": subject.model_elsewhere, "threads": threads}
    if subject.record.is_trusted:
        arguments["trust"] = True
    if subject.variant is not None:
        arguments["variant"] = subject.variant
        knobs.take(VARIANT)
    deployment = {
        "name": "Model",
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
    application = {
        "name": "luthier",
        "route_prefix": "/",
        "import_path": f"{PROGRAM.removesuffix('.py')}:app",
        "args": arguments,
        "deployments": [deployment],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [application],
    }
