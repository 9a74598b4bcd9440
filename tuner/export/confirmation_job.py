"""Kubernetes Job that loads an export from inside its cluster, as its study loaded the server.

It prints the figures of `tune load --json`, one line for each evaluation, for `tune confirm --measured`.
Source: the Kubernetes API, batch/v1.
"""

from __future__ import annotations

import shlex
from typing import Any

from serving import __version__
from serving.system.secret_variables import TOKEN_VARIABLE
from serving.zoo import bundled
from tuner.errors import UsageError
from tuner.export import container, provenance, yaml_text
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import RATE
from tuner.values.study_record import StudyRecord

IMAGE = f"luthier-tune:{__version__}"
"""Image that `make images RUNTIMES=tune` builds."""
CPU, MEMORY_MB = 1, 1024
"""A load generator keeps one core busy at most."""
SLACK_S = 60.0
"""Time for the start and the warm-up of each evaluation, before the Job is given up."""
OWN_SAMPLE = "the model's own sample"


def manifest(
    record: StudyRecord,
    target: TargetSettings,
    measurement: MeasurementSettings,
    *,
    url: str | None,
    repeats: int,
) -> str:
    """Return the manifest as YAML.

    Args:
        url: address of the server in the cluster; None for the Service of the export.
        repeats: number of evaluations.

    Raises:
        UsageError: the load needs a file of this machine, or searches for its rate.
    """
    _check(record, target, measurement)
    name = container.name_of(record)
    where = url or f"http://{name}:{container.PORT}"
    load = shlex.join(["python3", "-m", "tuner", *_load(record, target, measurement, where)])
    header = f'${{{TOKEN_VARIABLE}:+--header "Authorization: Bearer ${TOKEN_VARIABLE}"}}'
    script = f"for i in $(seq {repeats}); do {load} {header}; done"
    resources: dict[str, Any] = {"cpu": str(CPU), "memory": f"{MEMORY_MB}Mi"}
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
    deadline_s = round(repeats * (measurement.measured_s + measurement.warmup_s + SLACK_S))
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
    if file is not None or (own and record.target not in bundled.names()):
        what = file or OWN_SAMPLE
        raise UsageError(
            f"--job: the study sent {what}, a file that the cluster does not have; use --url"
        )


def _load(
    record: StudyRecord, target: TargetSettings, measurement: MeasurementSettings, url: str
) -> list[str]:
    words = ["load", url, "--model", record.model, "--json"]
    options: list[tuple[str, object]] = [
        ("--concurrency", target.concurrency),
        ("--rate", target.rate),
        ("--arrivals", target.arrivals),
        ("--client-batch", target.client_batch if target.client_batch > 1 else None),
        ("--requests", measurement.requests),
        ("--seconds", None if measurement.requests else f"{measurement.measured_s:g}"),
        ("--warmup", f"{measurement.warmup_s:g}"),
        ("--timeout", f"{measurement.timeout_s:g}"),
        *(("--shape", one) for one in target.shape),
        *(("--values", one) for one in target.values),
    ]
    for flag, value in options:
        if value is not None:
            words += [flag, str(value)]
    return words
