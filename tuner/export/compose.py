"""Export as a Docker Compose service: one container with gateway and replicas."""

from __future__ import annotations

from typing import Any

from tuner.export import container, provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs

FILE_NAME = "compose.yaml"
_LABELS = "luthier-export"
"""Distinct from a study's containers, which are cleaned up."""


def files(subject: ExportInput) -> Files:
    """Service and its settings."""
    knobs = Knobs(subject.advice.configuration)
    needed = container.needs(subject)
    settings = subject.place.with_name(f"{subject.place.name}.yaml")
    text = container.settings_text(subject, knobs)
    file = subject.place.with_name(FILE_NAME)
    told = provenance.lines(
        subject,
        "A service of Docker Compose",
        use=f"docker compose --file {provenance.shell_quote(file)} up --detach",
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
        remarks=[
            *container.remarks(subject, needed),
            "Ports 8000 (REST) and 8001 (gRPC) are open to this machine alone, the admin port (8002) to the container.",
            (
                "Every user of this machine may send requests; set LUTHIER_TOKEN in the "
                "environment of the service to require a token."
            ),
        ],
    )
    body = yaml_text.dump(_project(subject, needed, settings.name))
    return {FILE_NAME: f"{provenance.comments(told)}\n{body}", settings.name: text}


def _project(
    subject: ExportInput, needed: container.ResourceRequirements, settings: str
) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": container.image(subject),
        "command": [yaml_text.literal(word) for word in container.arguments(subject)],
        "ports": [f"127.0.0.1:{port}:{port}" for port in (container.PORT, container.GRPC_PORT)],
        "volumes": [_bind(f"./{settings}", container.SETTINGS)],
        "cpus": round(needed.cpu, 3),
    }
    if variables := container.environment(subject):
        service["environment"] = {name: yaml_text.literal(text) for name, text in variables.items()}
    mount = container.mount(subject)
    if mount is not None:
        service["volumes"].append(_bind(str(mount.source), mount.target))
    if needed.memory_mb is not None:
        # Equal values: no swap.
        service |= {"mem_limit": f"{needed.memory_mb}m", "memswap_limit": f"{needed.memory_mb}m"}
    service |= {
        "user": f"{container.USER}:{container.USER}",
        "read_only": True,
        "tmpfs": [f"/tmp:size={container.TEMPORARY_MB}m,mode=1777"],  # noqa: S108 - the container's
        "pids_limit": 1024,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _probe()],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{container.START_S}s",
        },
        "stop_grace_period": f"{container.DRAIN_S}s",
        "restart": "unless-stopped",
        "labels": {
            f"{_LABELS}.{name}": yaml_text.literal(text)
            for name, text in provenance.facts(subject).items()
        },
    }
    if subject.is_for_gpu:
        device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    # No project name: Compose before 2 rejects the key.
    return {"services": {"server": service}}


def _bind(source: str, target: str) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": yaml_text.literal(source),
        "target": yaml_text.literal(target),
        "read_only": True,
    }


def _probe() -> str:
    url = f"http://127.0.0.1:{container.PORT}{container.READY}"
    return f"import urllib.request as r; r.urlopen('{url}', timeout=3)"
