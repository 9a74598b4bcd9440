"""Containers of this machine's Docker engine, with limits and without privileges.

Calls block, with a timeout per request, and may come from any thread. The labels `luthier.owner`
and `luthier.worker` mark Luthier's containers; other containers are never touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from serving.error_text import one_line
from serving.errors import ServingError
from serving.spawners.docker.container_spec import SOCKET_FOLDER, ContainerSpec, Exit
from serving.system import process_identity

if TYPE_CHECKING:
    import docker

OWNER_LABEL = "luthier.owner"
WORKER_LABEL = "luthier.worker"
REQUEST_TIMEOUT_S = 60
"""Timeout of a request, longer than a busy engine takes to start a container."""
WAIT_POLL_S = 10
"""Poll interval for a container's end; polling also detects lost connections."""
PERIOD_US = 100_000
MIB = 1024 * 1024
_PROCESSES = 1024
"""Maximum processes and threads per container; `replica.threads` is at most 256."""
_TMP = "rw,noexec,nosuid,nodev,size=64m,mode=1777"
_SAID_BYTES = 65_536
_NEEDED = ("MemoryLimit", "CpuCfsQuota")


class DockerError(ServingError):
    """The engine is unusable or refuses a request."""


class ContainerGone(DockerError):
    """The container or image does not exist."""


class DockerClient:
    """Client of the Docker engine, created by `connect`.

    Every request raises a one-line DockerError if the engine refuses it or does not respond.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: list[docker.APIClient] = []
        self.limits_text = "enforced"
        self.limits_swap = True
        """Whether the kernel counts swap; otherwise only memory is limited."""
        self.offers_gpus = False
        """Whether NVIDIA's container toolkit is set up."""

    @classmethod
    def connect(cls) -> DockerClient:
        """Connect to the engine that DOCKER_HOST names, or to the default engine."""
        address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if not address.startswith("unix://"):
            raise DockerError(
                f"DOCKER_HOST is {address}, expected unix://PATH: replicas use a Unix "
                "socket in a mounted folder, so the engine must run on this machine"
            )
        engine = cls(address)
        with engine._translate_errors("replica.spawner docker") as api:
            facts: dict[str, Any] = api.info()
        engine.offers_gpus = "nvidia" in (facts.get("Runtimes") or {})
        lacking = [name for name in _NEEDED if not facts.get(name)]
        engine.limits_swap = bool(facts.get("SwapLimit"))
        if lacking:
            engine.limits_text = f"not enforced: the Docker engine lacks {', '.join(lacking)}"
        return engine

    def has_image(self, image: str) -> bool:
        """Return whether an image exists."""
        return self.image_id(image) is not None

    def image_id(self, image: str) -> str | None:
        """Return an image's id, or None if it does not exist."""
        with (
            contextlib.suppress(ContainerGone),
            self._translate_errors(f"image {image} cannot be inspected") as api,
        ):
            return str(api.inspect_image(image)["Id"])  # type: ignore[no-untyped-call]
        return None

    # One container

    def create(self, spec: ContainerSpec) -> str:
        """Create a container without network, capabilities, swap or CPU limit; return its id."""
        import docker.types  # noqa: PLC0415 - only an installation with containers has it

        mounts = [
            docker.types.Mount(where, str(file), "bind", read_only=True)
            for where, file in {SOCKET_FOLDER: spec.socket_folder, **spec.files}.items()
        ]
        gpus = None
        if spec.gpu is not None:
            gpus = [docker.types.DeviceRequest(device_ids=[spec.gpu], capabilities=[["gpu"]])]
        memory = None if spec.memory_mb is None else spec.memory_mb * MIB
        with self._translate_errors(f"a container of {spec.image} cannot be created") as api:
            host = api.create_host_config(
                network_mode="none",
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                pids_limit=_PROCESSES,
                ipc_mode="none",
                tmpfs={"/tmp": _TMP},  # noqa: S108 - the container's own
                mounts=mounts,
                device_requests=gpus,
                mem_limit=memory,
                memswap_limit=memory,
                log_config=docker.types.LogConfig(
                    type="json-file", config={"max-size": "1m", "max-file": "1"}
                ),
            )
            made = api.create_container(
                spec.image,
                list(spec.command),
                name=spec.name,
                user=None if os.geteuid() == 0 else f"{os.geteuid()}:{os.getegid()}",
                environment=spec.environment,
                labels={OWNER_LABEL: spec.owner, WORKER_LABEL: str(spec.worker)},
                host_config=host,
            )
        return str(made["Id"])

    def start(self, container: str) -> int:
        """Start a container; return its pid on the host, or 0 if it has ended."""
        with self._translate_errors("a container cannot be started") as api:
            api.start(container)
            return int(api.inspect_container(container)["State"]["Pid"])

    def limit(self, container: str, *, cpu: float | None, memory_mb: int | None) -> None:
        """Set a running container's limits and read them back; None leaves memory unchanged."""
        wanted = {
            "CpuPeriod": PERIOD_US,
            "CpuQuota": -1 if cpu is None else round(cpu * PERIOD_US),
        }
        if memory_mb is not None:
            wanted |= {"Memory": memory_mb * MIB, "MemorySwap": memory_mb * MIB}
        unlimited = () if self.limits_swap else ("MemorySwap",)
        with self._translate_errors("the limits of a container cannot be set") as api:
            api.update_container(
                container,
                cpu_period=wanted["CpuPeriod"],
                cpu_quota=wanted["CpuQuota"],
                mem_limit=wanted.get("Memory"),
                memswap_limit=wanted.get("MemorySwap"),
            )
            taken = api.inspect_container(container)["HostConfig"]
        for name, value in wanted.items():
            if taken[name] != value and name not in unlimited:
                raise DockerError(
                    f"{name} of a container was set to {value}, but reads {taken[name]}"
                )

    def wait(self, container: str) -> Exit | None:
        """Wait up to `WAIT_POLL_S` for a container's end, or return None if it still runs.

        Raises ContainerGone if the container was removed.
        """
        what = "the end of a container cannot be awaited"
        with contextlib.suppress(DockerError), self._translate_errors(what) as api:
            api.wait(container, timeout=WAIT_POLL_S)
        with self._translate_errors(what) as api:  # read its state, whatever ended the wait
            state = api.inspect_container(container)["State"]
            if state["Running"]:
                return None
            said = api.logs(container, tail=20)[-_SAID_BYTES:].decode(errors="replace").splitlines()
        lines = ["", *[line.strip() for line in said if line.strip()]]
        said_last = str(state.get("Error") or lines[-1])
        return Exit(code=int(state["ExitCode"]), oom=bool(state["OOMKilled"]), said=said_last)

    def kill(self, container: str) -> None:
        """Kill a container, unless it has ended or is gone."""
        self._harmless("a container cannot be stopped", lambda api: api.kill(container))

    def remove(self, container: str) -> None:
        """Kill and remove a container, unless it is gone."""
        self._harmless(
            "a container cannot be removed",
            lambda api: api.remove_container(container, force=True, v=True),
        )

    # Clean-up

    def of_owner(self, name: str) -> list[str]:
        """Return the ids of an owner's containers, including ended ones."""
        return [str(container["Id"]) for container in self._list(f"{OWNER_LABEL}={name}")]

    def stale(self) -> dict[str, str]:
        """Return the containers whose owners are gone, as id -> name."""
        stale = {}
        for container in self._list(OWNER_LABEL):
            maker = process_identity.of(container["Labels"].get(OWNER_LABEL, ""))
            if maker is not None and maker.is_gone():
                # A container has no name while it is being removed.
                names = container["Names"] or [container["Id"]]
                stale[str(container["Id"])] = str(names[0]).removeprefix("/")
        return stale

    def _list(self, label: str) -> Any:
        with self._translate_errors("containers cannot be listed") as api:
            return api.containers(all=True, filters={"label": label})

    # The connection

    def _connection(self) -> docker.APIClient:
        import docker  # noqa: PLC0415

        path = pathlib.Path(self.address.removeprefix("unix://"))
        if not path.is_socket():  # the SDK leaks a failed connection
            raise FileNotFoundError(errno.ENOENT, "no socket", str(path))
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return docker.APIClient(base_url=self.address, version="auto", timeout=REQUEST_TIMEOUT_S)

    @contextlib.contextmanager
    def _translate_errors(self, what: str) -> Iterator[docker.APIClient]:
        try:
            import docker.errors  # noqa: PLC0415
            import requests.exceptions  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise DockerError(
                "replica.spawner docker needs the Python package 'docker': "
                "pip install '.[docker]' in a clone"
            ) from error
        api: docker.APIClient | None = None
        is_broken = False
        try:
            api = self._connection()
            yield api
        except docker.errors.NotFound as error:
            raise ContainerGone(f"{what}: {one_line(error.explanation)}") from error
        except docker.errors.APIError as error:
            raise DockerError(f"{what}: {one_line(error.explanation or error)}") from error
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            OSError,
        ) as error:
            is_broken = True
            raise DockerError(f"{what}: {self._unreachable(error)}") from error
        finally:
            if api is not None and is_broken:
                api.close()
            elif api is not None:
                self._idle.append(api)

    def close(self) -> None:
        """Close unused connections."""
        while self._idle:
            self._idle.pop().close()

    def _unreachable(self, error: Exception) -> str:
        path = self.address.removeprefix("unix://")
        if not os.path.exists(path):  # noqa: PTH110 - also true for a socket that may not be looked at
            return f"no Docker engine at {path}; start one, or name another socket in DOCKER_HOST"
        if not os.access(path, os.W_OK):
            return f"this user may not use {path}: it takes root or a member of its group"
        return f"the Docker engine at {path} does not answer ({one_line(error)})"

    def _harmless(self, what: str, request: Any) -> None:
        import docker.errors  # noqa: PLC0415

        with contextlib.suppress(ContainerGone), self._translate_errors(what) as api:
            try:
                request(api)
            except docker.errors.APIError as error:
                if error.status_code != 409:  # it is already ending or being removed
                    raise


def remove_all(engine: DockerClient, containers: Sequence[str]) -> None:
    """Remove containers, then raise the first DockerError, if any."""
    errors: list[DockerError] = []
    for container in containers:
        try:
            engine.remove(container)
        except DockerError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def cleanup_stale() -> list[str]:
    """Remove containers whose owners are gone; return the containers' names."""
    with contextlib.closing(DockerClient.connect()) as engine:
        stale = engine.stale()
        remove_all(engine, list(stale))
    return list(stale.values())
