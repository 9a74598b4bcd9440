"""Export as a Kubernetes Deployment with Service, network policy, autoscaler and settings.

A pod is one server with all its replicas. Source: the Kubernetes API, apps/v1, networking.k8s.io/v1
and autoscaling/v2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tuner.export import container, manifests, provenance
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.values.measurement import Measurement

FILE_NAME = "kubernetes.yaml"
MAX_PODS = 4
HEADROOM = 0.8
"""Share of the measured CPU use at which a pod is added, as starting takes seconds."""
MIN_TARGET, MAX_TARGET = 10, 90
"""Bounds of the autoscaler's target in per cent; 100 may never be reached."""


def files(subject: ExportInput) -> Files:
    """Return the manifests of an export."""
    knobs = Knobs(subject.advice.configuration)
    needed = container.needs(subject)
    settings = container.settings_text(subject, knobs)
    mount = container.mount(subject)
    target, reckoned = scaling_target(provenance.measurements(subject), needed.cpu)
    told = provenance.lines(
        subject,
        "A Deployment of Kubernetes",
        use=f"kubectl apply --filename {provenance.shell_quote(subject.place.with_name(FILE_NAME))}",
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
        remarks=[
            *container.remarks(subject, needed),
            f"Name the image as your registry does: {container.image(subject)} is what `make images` builds.",
            *manifests.remarks(subject),
            (
                "NetworkPolicy: only pods of the same namespace reach the server; name "
                "others under `from`."
            ),
            "A cluster that does not enforce policies lets everybody in.",
            *reckoned,
            *([] if mount is None else _claim(subject, mount)),
        ],
    )
    body = manifests.documents(
        manifests.config_map(subject, settings),
        _deployment(subject, needed, settings, mount),
        _service(subject),
        _network_policy(subject),
        _autoscaler(subject, target),
    )
    return {FILE_NAME: f"{provenance.comments(told)}\n{body}"}


def scaling_target(launches: tuple[Measurement, ...], cpu: float) -> tuple[int, list[str]]:
    """CPU per cent at which a pod is added, and its explanation.

    Args:
        launches: evaluations of the configuration.
        cpu: cores that a pod requests.
    """
    used = [used for launch in launches if (used := _cores(launch)) is not None]
    if not used:
        target = round(100 * HEADROOM)
        return target, [
            f"Autoscaler: the CPU time at the study's load is not known; {target} % of the request."
        ]
    cores = math.fsum(used) / len(used)
    rate = math.fsum(launch.throughput_per_s for launch in launches) / len(launches)
    target = min(MAX_TARGET, max(MIN_TARGET, math.floor(100 * HEADROOM * cores / cpu)))
    return target, [
        f"Autoscaler: at the study's load a pod answered {rate:.4g} requests/s and used {cores:.3g} cores.",
        f"Pods are added at {100 * HEADROOM:g} % of that, which is {target} % of the {cpu:g} that it requests.",
        (
            f"For R requests/s that makes about R / {HEADROOM * rate:.4g} pods; maxReplicas "
            "is an estimate."
        ),
    ]


def _cores(launch: Measurement) -> float | None:
    used_s = launch.noise.server_cpu_s
    return None if used_s is None else used_s / (launch.warmup_s + launch.seconds)


def _claim(subject: ExportInput, mount: container.Mount) -> Iterator[str]:
    yield f"The volume claim {_claim_name(subject)} must hold the content of the folder {mount.source}."


def _claim_name(subject: ExportInput) -> str:
    return f"{container.name_of(subject)}-model"


def _deployment(
    subject: ExportInput,
    needed: container.ResourceRequirements,
    settings: str,
    mount: container.Mount | None,
) -> dict[str, Any]:
    name = container.name_of(subject)
    server = manifests.server(subject, "server", needed, container.arguments(subject))
    server["ports"] = [
        {"name": "http", "containerPort": container.PORT},
        {"name": "grpc", "containerPort": container.GRPC_PORT},
    ]
    server["env"] = manifests.environment(subject, container.environment(subject))
    volumes = manifests.volumes(subject)
    if mount is not None:
        server["volumeMounts"].append(
            {"name": "model", "mountPath": mount.target, "readOnly": True}
        )
        claim = {"claimName": _claim_name(subject), "readOnly": True}
        volumes.append({"name": "model", "persistentVolumeClaim": claim})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": manifests.metadata(subject),
        # No replica count: the autoscaler owns it, and an apply must not reset it.
        "spec": {
            "selector": {"matchLabels": manifests.labels(name)},
            "template": {
                "metadata": {
                    "labels": manifests.labels(name),
                    "annotations": manifests.settings_digest(settings),
                },
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": container.DRAIN_S,
                    "containers": [server],
                    "volumes": volumes,
                },
            },
        },
    }


def _service(subject: ExportInput) -> dict[str, Any]:
    name = container.name_of(subject)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": manifests.labels(name)},
        "spec": {
            "selector": manifests.labels(name),
            "ports": [
                {"name": "http", "port": container.PORT, "targetPort": "http"},
                {"name": "grpc", "port": container.GRPC_PORT, "targetPort": "grpc"},
            ],
        },
    }


def _network_policy(subject: ExportInput) -> dict[str, Any]:
    name = container.name_of(subject)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": manifests.labels(name)},
        "spec": {
            "podSelector": {"matchLabels": manifests.labels(name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {}}],
                    "ports": [{"port": "http"}, {"port": "grpc"}],
                }
            ],
        },
    }


def _autoscaler(subject: ExportInput, target: int) -> dict[str, Any]:
    name = container.name_of(subject)
    utilization = {"type": "Utilization", "averageUtilization": target}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": manifests.labels(name)},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1,
            "maxReplicas": MAX_PODS,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": utilization}}],
        },
    }
