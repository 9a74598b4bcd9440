"""Export as a Docker Compose service: one container with gateway and replicas."""

from __future__ import annotations

from typing import Any

from tuner.export import container, provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.metrics import server_resources

FILE_NAME = "compose.yaml"


def files(subject: ExportInput) -> Files:
    """Return the Compose file and its settings file."""
    knobs = Knobs(subject.advice.configuration)
    server = container.describe(subject, knobs)
    settings = f"{subject.place.name}.yaml"
    head = provenance.head(
        subject,
        "A service of Docker Compose",
        use=f"docker compose --file {subject.quoted(FILE_NAME)} up --detach",
        knobs=knobs,
        remarks=[
            *server.remarks,
            "Ports 8000 (REST) and 8001 (gRPC) are open to this machine alone, the admin port (8002) to the container.",
            (
                "Every user of this machine may send requests; set LUTHIER_TOKEN in the "
                "environment of the service to require a token."
            ),
        ],
    )
    # No project name: Compose before 2 rejects the key.
    body = yaml_text.dump({"services": {"server": _service(server, settings)}})
    return {FILE_NAME: head + body, settings: server.settings}


def _service(server: container.Container, settings: str) -> dict[str, Any]:
    volumes = [_bind(f"./{settings}", container.SETTINGS)]
    if server.model.source is not None:
        volumes.append(_bind(str(server.model.source), server.model.target))
    memory_mb = server.needs.memory_mb
    memory = None if memory_mb is None else f"{memory_mb}m"
    url = f"http://127.0.0.1:{container.PORT}{container.READY}"
    probe = f"import urllib.request as r; r.urlopen('{url}', timeout=3)"
    gpu = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    gpus = {"resources": {"reservations": {"devices": [gpu]}}}
    service = {
        "image": server.image,
        "command": server.arguments,
        "ports": [f"127.0.0.1:{port}:{port}" for port in (container.PORT, container.GRPC_PORT)],
        "volumes": volumes,
        "cpus": round(server.needs.cpu, 3),
        "environment": server.variables,
        "mem_limit": memory,
        "memswap_limit": memory,  # equal: no swap
        "user": f"{container.USER}:{container.USER}",
        "read_only": True,
        "tmpfs": [f"/tmp:size={server_resources.TEMPORARY_MB}m,mode=1777"],  # noqa: S108 - the container's
        "pids_limit": 1024,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", probe],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{container.START_S}s",
        },
        "stop_grace_period": f"{container.DRAIN_S}s",
        "restart": "unless-stopped",
        "labels": {  # distinct from those of a study's containers, which are cleaned up
            f"luthier-export.{name}": yaml_text.literal(text) for name, text in server.facts.items()
        },
        "deploy": gpus if server.is_for_gpu else None,
    }
    return {key: value for key, value in service.items() if value}


def _bind(source: str, target: str) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": yaml_text.literal(source),
        "target": yaml_text.literal(target),
        "read_only": True,
    }
