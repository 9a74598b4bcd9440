"""Kubernetes Job that loads an export from inside its cluster, as its study loaded the server.

It prints the figures of `tune load --json`, one line for each evaluation, for `tune confirm --measured`.
Source: the Kubernetes API, batch/v1.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from serving import __version__
from serving.system.secret_variables import TOKEN_VARIABLE
from serving.zoo import bundled
from tuner.errors import UsageError
from tuner.export import container, provenance, yaml_text
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import RATE, is_trace
from tuner.values.study_record import StudyRecord

IMAGE = f"luthier-tune:{__version__}"
"""Image that `make images RUNTIMES=tune` builds."""
CPU, MEMORY_MB = 1, 1024
"""Of one process of the load generator, which keeps one core busy at most."""
CLIENT_MB = 256
"""Memory of each further process of the load generator."""
SLACK_S = 60.0
"""Time for the start of each evaluation and for settling, before the Job is given up."""
TIMEOUTS = 4
"""Timeouts of a request that a warm-up of three round trips and an end take at most."""
SLOWER = 10.0
"""Factor by which a given number of requests may take longer than in the study."""
OWN_SAMPLE = "the model's own sample"


def manifest(
    record: StudyRecord,
    target: TargetSettings,
    measurement: MeasurementSettings,
    *,
    url: str | None,
    repeats: int,
    seconds: float,
) -> str:
    """Return the manifest as YAML.

    Args:
        url: address of the server in the cluster; None for the Service of the export.
        repeats: number of evaluations.
        seconds: length of the study's longest evaluation of the configuration.

    Raises:
        UsageError: the load needs a file of this machine, or searches for its rate.
    """
    _check(record, target, measurement)
    name = container.name_of(record)
    where = url or f"http://{name}:{container.PORT}"
    load = shlex.join(
        ["python3", "-m", "tuner", *_load(record, target, measurement, where, seconds)]
    )
    seed = ' --seed "$i"' if target.is_open else ""  # other arrivals in each evaluation
    header = f'${{{TOKEN_VARIABLE}:+--header "Authorization: Bearer ${TOKEN_VARIABLE}"}}'
    # A load that fails is a figure too, which `tune confirm` counts.
    script = f"for i in $(seq {repeats}); do {load}{seed} {header}; done; true"
    clients = measurement.load_clients
    memory_mb = MEMORY_MB + CLIENT_MB * (clients - 1)
    resources: dict[str, Any] = {"cpu": str(CPU * clients), "memory": f"{memory_mb}Mi"}
    token = {"name": f"{name}-token", "key": "token", "optional": True}
    loader = {
        "name": "load",
        "image": IMAGE,
        "command": ["sh", "-c", script.replace("$(", "$$(")],  # $( is Kubernetes' own
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": container.USER,
            "runAsGroup": container.USER,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the container's
        "env": [{"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": token}}],
    }
    labels = {"app.kubernetes.io/name": f"{name}-confirm"}
    deadline_s = math.ceil(repeats * _longest_s(measurement, seconds))
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{name}-confirm", "labels": labels},
        "spec": {
            "backoffLimit": 0,  # a repeated load would be measured twice
            "activeDeadlineSeconds": deadline_s,
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "containers": [loader],
                    "volumes": [{"name": "tmp", "emptyDir": {}}],
                },
            },
        },
    }
    told = [
        f"A Job of Kubernetes that loads {record.model} as study {record.name} did, by `tune confirm`.",
        f"Its image is {IMAGE}, which `make images RUNTIMES=tune` builds. Then:",
        "  kubectl apply --filename confirm.yaml",
        f"  kubectl wait --for condition=complete --timeout {deadline_s}s job/{name}-confirm",
        f"  kubectl logs job/{name}-confirm > loads.jsonl",
        f"  tune confirm {shlex.quote(record.folder)} --measured loads.jsonl",
        (
            f"With `kubectl port-forward service/{name} {container.PORT}` running, and "
            f"--url http://127.0.0.1:{container.PORT}, it also checks what answers there."
        ),
        "The Job does not scale: fix the number of pods at 1 while it runs, as the study measured one.",
    ]
    return f"{provenance.comments(told)}\n{yaml_text.dump(job)}"


def _check(record: StudyRecord, target: TargetSettings, measurement: MeasurementSettings) -> None:
    if measurement.objective == RATE:
        raise UsageError(
            "--job: the study searched the highest rate, which one load does not; use --url"
        )
    own = record.sent is not None and record.sent.source == OWN_SAMPLE
    file = target.payload or next(
        (one for one in (*target.shape, *target.values) if "@" in one), None
    )
    if is_trace(target.arrivals):
        file = target.arrivals
    if file is not None or (own and record.target not in bundled.names()):
        what = file or OWN_SAMPLE
        raise UsageError(
            f"--job: the study sent {what}, a file that the cluster does not have; use --url"
        )


def _seconds(measurement: MeasurementSettings, seconds: float) -> float:
    """Return the seconds to measure: as in the study, which measures longer for a p99."""
    return max(measurement.measured_s, round(seconds, 1))


def _longest_s(measurement: MeasurementSettings, seconds: float) -> float:
    """Return the time that one evaluation may take."""
    is_counted = measurement.requests is not None
    measured_s = SLOWER * seconds if is_counted else _seconds(measurement, seconds)
    return measurement.warmup_s + measured_s + TIMEOUTS * measurement.timeout_s + SLACK_S


def _load(
    record: StudyRecord,
    target: TargetSettings,
    measurement: MeasurementSettings,
    url: str,
    seconds: float,
) -> list[str]:
    words = ["load", url, "--model", record.model, "--json"]
    options: list[tuple[str, object]] = [
        ("--concurrency", target.concurrency),
        ("--rate", target.rate),
        ("--arrivals", target.arrivals),
        ("--client-batch", target.client_batch if target.client_batch > 1 else None),
        ("--requests", measurement.requests),
        ("--seconds", None if measurement.requests else f"{_seconds(measurement, seconds):g}"),
        ("--warmup", f"{measurement.warmup_s:g}"),
        ("--timeout", f"{measurement.timeout_s:g}"),
        ("--load-clients", measurement.load_clients if measurement.load_clients > 1 else None),
        ("--slo-ms", measurement.deadline_ms),
        *(("--shape", one) for one in target.shape),
        *(("--values", one) for one in target.values),
    ]
    for flag, value in options:
        if value is not None:
            words += [flag, str(value)]
    return words
