"""Parts of Kubernetes manifests that several formats share. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from serving.system.secret_variables import TOKEN_VARIABLE
from tuner.export import container, provenance, yaml_text
from tuner.export.export_input import ExportInput

_PREFIX = "luthier/"
_SETTINGS_KEY = "settings.yaml"
_SECRET_KEY = "token"  # noqa: S105 - the name of a key
READY_PERIOD_S = 5


def metadata(subject: ExportInput, **more: str) -> dict[str, Any]:
    """Name, label, and provenance as annotations."""
    name = container.name_of(subject)
    told = {_PREFIX + key: text for key, text in provenance.facts(subject).items()}
    return {"name": name, "labels": labels(name), "annotations": {**told, **more}}


def labels(name: str) -> dict[str, str]:
    """Labels that select the pods."""
    return {"app.kubernetes.io/name": name}


def settings_digest(settings: str) -> dict[str, str]:
    """Annotation that restarts pods when the settings change."""
    digest = hashlib.sha256(settings.encode("utf-8", "replace")).hexdigest()
    return {f"{_PREFIX}settings-sha256": digest}


def config_map(subject: ExportInput, settings: str) -> dict[str, Any]:
    """Settings file."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata(subject), "name": f"{container.name_of(subject)}-settings"},
        "data": {_SETTINGS_KEY: settings},
    }


def server(
    subject: ExportInput, name: str, needed: container.ResourceRequirements, arguments: list[str]
) -> dict[str, Any]:
    """The server's container, without ports and model mounts."""
    resources = {"cpu": f"{round(1000 * needed.cpu)}m"}
    if needed.memory_mb is not None:
        resources["memory"] = f"{needed.memory_mb}Mi"
    if subject.is_for_gpu:
        resources[container.GPU] = "1"
    return {
        "name": name,
        "image": container.image(subject),
        "args": [yaml_text.literal(word) for word in arguments],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "startupProbe": _probe(
            container.READY, period_s=2, failures=container.START_S // 2, timeout_s=2
        ),
        "readinessProbe": _probe(container.READY, period_s=READY_PERIOD_S, failures=2, timeout_s=3),
        "livenessProbe": _probe(container.LIVE, period_s=10, failures=6, timeout_s=5),
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
    }


def environment(subject: ExportInput, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """The container's variables, with an optional secret token."""
    of_secret = {"name": _secret_name(subject), "key": _SECRET_KEY, "optional": True}
    return [
        *({"name": name, "value": yaml_text.literal(text)} for name, text in variables.items()),
        {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": of_secret}},
    ]


def remarks(subject: ExportInput) -> list[str]:
    """How to require a token."""
    name = _secret_name(subject)
    return [
        (
            "Without a token, everybody who reaches the ports may send requests, without "
            "TLS. To require one, first run:"
        ),
        f"  kubectl create secret generic {name} --from-literal={_SECRET_KEY}=$(openssl rand -hex 16)",
    ]


def _secret_name(subject: ExportInput) -> str:
    return f"{container.name_of(subject)}-token"


def volumes(subject: ExportInput) -> list[dict[str, Any]]:
    """Volumes for settings and temporary files."""
    name = f"{container.name_of(subject)}-settings"
    return [
        {"name": "settings", "configMap": {"name": name}},
        {
            "name": "tmp",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{container.TEMPORARY_MB}Mi"},
        },
    ]


def documents(*data: dict[str, Any]) -> str:
    """Join manifests into one file."""
    return "---\n".join(yaml_text.dump(item) for item in data)


def _probe(path: str, *, period_s: int, failures: int, timeout_s: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": container.PORT},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
