"""Export as a Kubernetes Deployment with Service, network policy, autoscaler and settings.

A pod is one server with all its replicas. Source: the Kubernetes API, apps/v1, networking.k8s.io/v1
and autoscaling/v2.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from serving.system.secret_variables import TOKEN_VARIABLE
from tuner.export import container, provenance, yaml_text
from tuner.export.container import Container
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.metrics import server_resources
from tuner.values.measurement import Measurement

FILE_NAME = "kubernetes.yaml"
MAX_PODS = 4
HEADROOM = 0.8
"""Share of the measured CPU use at which a pod is added, as starting one takes seconds."""
MIN_TARGET, MAX_TARGET = 10, 90
"""Bounds of the autoscaler's target in per cent; 100 might never be reached."""
_PREFIX = "luthier/"
_SETTINGS_KEY = "settings.yaml"


def files(subject: ExportInput) -> Files:
    """Return the manifests in one file."""
    knobs = Knobs(subject.advice.configuration)
    server = container.describe(subject, knobs)
    target, reckoned = scaling_target(provenance.measurements(subject), server.needs.cpu)
    remarks = [
        *server.remarks,
        f"Name the image as your registry does: {server.image} is what `make images` builds.",
        *token_remarks(server),
        (
            "NetworkPolicy: only pods of the same namespace reach the server; name "
            "others under `from`."
        ),
        "A cluster that does not enforce policies lets everybody in.",
        *reckoned,
    ]
    if server.model.source is not None:
        remarks.append(
            f"The volume claim {server.name}-model must hold the content of the folder "
            f"{server.model.source}."
        )
    head = provenance.head(
        subject,
        "A Deployment of Kubernetes",
        use=f"kubectl apply --filename {subject.quoted(FILE_NAME)}",
        knobs=knobs,
        remarks=remarks,
    )
    ports = [("http", container.PORT), ("grpc", container.GRPC_PORT)]
    service = {
        "selector": labels(server),
        "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
    }
    policy = {
        "podSelector": {"matchLabels": labels(server)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": {}}], "ports": [{"port": name} for name, _ in ports]}
        ],
    }
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}
    scaling = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": server.name},
        "minReplicas": 1,
        "maxReplicas": MAX_PODS,
        "metrics": [{"type": "Resource", "resource": cpu}],
    }
    body = documents(
        server,
        _deployment(server, [{"name": name, "containerPort": port} for name, port in ports]),
        manifest("v1", "Service", server, spec=service),
        manifest("networking.k8s.io/v1", "NetworkPolicy", server, spec=policy),
        manifest("autoscaling/v2", "HorizontalPodAutoscaler", server, spec=scaling),
    )
    return {FILE_NAME: head + body}


def scaling_target(evaluations: tuple[Measurement, ...], cpu: float) -> tuple[int, list[str]]:
    """Return the CPU use, in % of a pod's `cpu`, at which a pod is added, and an explanation."""
    used = [
        one.noise.server_cpu_s / (one.warmup_s + one.seconds)
        for one in evaluations
        if one.noise.server_cpu_s is not None
    ]
    if not used:
        target = round(100 * HEADROOM)
        return target, [
            f"Autoscaler: the CPU time at the study's load is not known; {target} % of the request."
        ]
    cores = math.fsum(used) / len(used)
    rate = math.fsum(one.throughput_per_s for one in evaluations) / len(evaluations)
    target = min(MAX_TARGET, max(MIN_TARGET, math.floor(100 * HEADROOM * cores / cpu)))
    return target, [
        f"Autoscaler: at the study's load a pod answered {rate:.4g} requests/s and used {cores:.3g} cores.",
        f"Pods are added at {100 * HEADROOM:g} % of that, which is {target} % of the {cpu:g} that it requests.",
        (
            f"For R requests/s that makes about R / {HEADROOM * rate:.4g} pods; maxReplicas "
            "is an estimate."
        ),
    ]


def manifest(
    api: str,
    kind: str,
    server: Container,
    *,
    suffix: str = "",
    annotations: dict[str, str] | None = None,
    **body: Any,
) -> dict[str, Any]:
    """Return a manifest with the server's name and labels."""
    metadata: dict[str, Any] = {"name": f"{server.name}{suffix}", "labels": labels(server)}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def documents(server: Container, *manifests: dict[str, Any]) -> str:
    """Join a ConfigMap with the settings and other manifests."""
    settings = manifest("v1", "ConfigMap", server, suffix="-settings", annotations=facts(server))
    settings["data"] = {_SETTINGS_KEY: server.settings}
    return "---\n".join(map(yaml_text.dump, (settings, *manifests)))


def labels(server: Container) -> dict[str, str]:
    """Return the labels that select the pods."""
    return {"app.kubernetes.io/name": server.name}


def facts(server: Container) -> dict[str, str]:
    """Return the provenance as annotations."""
    return {_PREFIX + name: text for name, text in server.facts.items()}


def settings_digest(server: Container) -> dict[str, str]:
    """Return the annotation that restarts pods when the settings change."""
    digest = hashlib.sha256(server.settings.encode("utf-8", "replace")).hexdigest()
    return {f"{_PREFIX}settings-sha256": digest}


def pod_container(
    server: Container, name: str, ports: list[dict[str, Any]], **variables: str
) -> dict[str, Any]:
    """Return the server's container, without model mounts."""
    resources = {"cpu": f"{round(1000 * server.needs.cpu)}m"}
    if server.needs.memory_mb is not None:
        resources["memory"] = f"{server.needs.memory_mb}Mi"
    if server.is_for_gpu:
        resources["nvidia.com/gpu"] = "1"
    plain = {**variables, **server.variables}
    token = {"name": f"{server.name}-token", "key": "token", "optional": True}
    return {
        "name": name,
        "image": server.image,
        "args": server.arguments,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "startupProbe": _probe(
            container.READY, period_s=2, failures=container.START_S // 2, timeout_s=2
        ),
        "readinessProbe": _probe(container.READY, period_s=5, failures=2, timeout_s=3),
        "livenessProbe": _probe("/v2/health/live", period_s=10, failures=6, timeout_s=5),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": container.USER,
            "runAsGroup": container.USER,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {
                "name": "settings",
                "mountPath": container.SETTINGS,
                "subPath": _SETTINGS_KEY,
                "readOnly": True,
            },
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's
        ],
        "ports": ports,
        "env": [
            *({"name": name, "value": text} for name, text in plain.items()),
            {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": token}},
        ],
    }


def token_remarks(server: Container) -> list[str]:
    """Return remarks on requiring a token."""
    return [
        (
            "Without a token, everybody who reaches the ports may send requests, without "
            "TLS. To require one, first run:"
        ),
        f"  kubectl create secret generic {server.name}-token --from-literal=token=$(openssl rand -hex 16)",
    ]


def volumes(server: Container) -> list[dict[str, Any]]:
    """Return volumes for settings and temporary files."""
    temporary = {"medium": "Memory", "sizeLimit": f"{server_resources.TEMPORARY_MB}Mi"}
    return [
        {"name": "settings", "configMap": {"name": f"{server.name}-settings"}},
        {"name": "tmp", "emptyDir": temporary},
    ]


def _deployment(server: Container, ports: list[dict[str, Any]]) -> dict[str, Any]:
    pod, mounted = pod_container(server, "server", ports), volumes(server)
    if server.model.source is not None:
        place = {"name": "model", "mountPath": server.model.target, "readOnly": True}
        pod["volumeMounts"].append(place)
        claim = {"claimName": f"{server.name}-model", "readOnly": True}
        mounted.append({"name": "model", "persistentVolumeClaim": claim})
    spec = {
        # No replica count: the autoscaler owns it, and an apply must not reset it.
        "selector": {"matchLabels": labels(server)},
        "template": {
            "metadata": {"labels": labels(server), "annotations": settings_digest(server)},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": container.DRAIN_S,
                "containers": [pod],
                "volumes": mounted,
            },
        },
    }
    return manifest("apps/v1", "Deployment", server, annotations=facts(server), spec=spec)


def _probe(path: str, *, period_s: int, failures: int, timeout_s: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": container.PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
