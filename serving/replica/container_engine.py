"""The Docker engine of this machine, as far as replicas need it: containers with limits and without rights.

In: what a container shall be. Out: its id, its process, how it ended; and the containers of owners that are gone.
Blocking, with a timeout on every request; for any thread. Everything that the Docker SDK raises is `EngineError`
here, in one line.

Each container has two labels: `luthier.owner`, the name of the home that made it, which tells the process
(`owner`), and `luthier.worker`. Nothing without them is ever touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serving import owner
from serving.errors import ServingError

if TYPE_CHECKING:
    import docker

OWNER_LABEL = "luthier.owner"
WORKER_LABEL = "luthier.worker"
SOCKET_FOLDER = "/run/luthier"
"""Where the folder of the gateway's socket is mounted."""
FILES_FOLDER = "/files"
"""Below it files of the host are mounted, by their paths: an image may keep others out of a folder of the same name,
as most do with /root."""
REQUEST_TIMEOUT_S = 60
"""A busy engine starts a container slowly; one that says nothing for so long hangs."""
WAIT_POLL_S = 10
"""A wait for a container's end is asked anew so often, so that a lost connection is noticed."""
PERIOD_US = 100_000
MIB = 1024 * 1024
_PROCESSES = 1024
"""Processes and threads of one container: `replica.threads` is at most 256."""
_TMP = "rw,noexec,nosuid,nodev,size=64m,mode=1777"
_SAID_BYTES = 65_536
_NEEDED = ("MemoryLimit", "CpuCfsQuota")


class EngineError(ServingError):
    """The Docker engine cannot be used, or refuses something."""


class ContainerGone(EngineError):
    """There is no such container any more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What a container of a replica shall be."""

    name: str
    """Unique on the engine."""
    owner: str
    worker: int
    image: str
    command: tuple[str, ...]
    socket_folder: pathlib.Path
    """Mounted, read-only, at `SOCKET_FOLDER`."""
    files: Mapping[str, pathlib.Path]
    """Mounted, read-only: where in the container -> file or folder, absolute."""
    memory_mb: int | None
    environment: dict[str, str]
    gpu: str | None = None
    """The GPU that it sees, by index or UUID; None: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a container ended, as the engine reports it."""

    code: int
    """128 + the signal's number for one that a signal ended."""
    oom: bool
    said: str
    """The last line that it wrote, empty if none."""


class ContainerEngine:
    """A connection to the engine; made by `connect`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: list[docker.APIClient] = []
        """Connections that no request uses."""
        self.limits_text = "enforced"
        self.limits_swap = True
        """Whether its kernel counts swap; without it the limit is one of memory alone."""
        self.offers_gpus = False
        """Whether it is set up to give GPUs to containers, by NVIDIA's toolkit."""

    @classmethod
    def connect(cls) -> ContainerEngine:
        """The engine that DOCKER_HOST names, or the machine's default one.

        Raises:
            EngineError: it cannot be used, with what is missing.
        """
        address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        if not address.startswith("unix://"):
            raise EngineError(
                f"DOCKER_HOST is {address}, expected unix://PATH: replicas speak over a Unix socket in a "
                f"mounted folder, so the engine must be on this machine"
            )
        engine = cls(address)
        with engine._asked("replica.home docker") as api:
            facts: dict[str, Any] = api.info()
        engine.offers_gpus = "nvidia" in (facts.get("Runtimes") or {})
        lacking = [name for name in _NEEDED if not facts.get(name)]
        engine.limits_swap = bool(facts.get("SwapLimit"))
        if lacking:
            engine.limits_text = f"not enforced: the Docker engine lacks {', '.join(lacking)}"
        return engine

    def has_image(self, image: str) -> bool:
        """Whether an image is there."""
        return self.image_id(image) is not None

    def image_id(self, image: str) -> str | None:
        """What tells an image from others that had its name before; None: it is not there."""
        import docker.errors  # noqa: PLC0415 - only an installation with containers has it

        with self._asked(f"image {image} cannot be looked up") as api:
            try:
                found = api.inspect_image(image)  # type: ignore[no-untyped-call]
            except docker.errors.ImageNotFound:
                return None
        return str(found["Id"])

    # One container

    def create(self, spec: ContainerSpec) -> str:
        """Make a container that does not run yet; returns its id.

        Its root is read-only, it has no capabilities and gets none, no network, and no swap. Its CPU is not
        limited yet.

        Raises:
            EngineError: the engine refuses.
        """
        import docker.types  # noqa: PLC0415

        mounts = [
            docker.types.Mount(SOCKET_FOLDER, str(spec.socket_folder), "bind", read_only=True)
        ]
        mounts += [
            docker.types.Mount(where, str(file), "bind", read_only=True)
            for where, file in spec.files.items()
        ]
        gpus = None
        if spec.gpu is not None:
            gpus = [docker.types.DeviceRequest(device_ids=[spec.gpu], capabilities=[["gpu"]])]
        memory = None if spec.memory_mb is None else spec.memory_mb * MIB
        with self._asked(f"a container of {spec.image} cannot be made") as api:
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
        """Let it run; returns its process as this machine numbers it, 0 where it has ended already.

        Raises:
            EngineError: the engine refuses.
        """
        with self._asked("a container cannot be started") as api:
            api.start(container)
            return int(api.inspect_container(container)["State"]["Pid"])

    def limit(self, container: str, *, cpu: float | None, memory_mb: int | None) -> None:
        """Set both limits of a running container, memory and memory with swap together, and read them back.

        Args:
            container: its id.
            cpu: cores, None: no limit.
            memory_mb: MiB, None: as it is.

        Raises:
            EngineError: the engine refuses, or did not take what was given.
        """
        wanted = {
            "CpuPeriod": PERIOD_US,
            "CpuQuota": -1 if cpu is None else round(cpu * PERIOD_US),
        }
        if memory_mb is not None:
            wanted |= {"Memory": memory_mb * MIB, "MemorySwap": memory_mb * MIB}
        unlimited = () if self.limits_swap else ("MemorySwap",)
        with self._asked("the limits of a container cannot be set") as api:
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
                raise EngineError(
                    f"{name} of a container was set to {value}, but reads {taken[name]}"
                )

    def wait(self, container: str) -> Exit | None:
        """Wait for its end, `WAIT_POLL_S` at most; None if it still runs then.

        Raises:
            ContainerGone: somebody removed it.
            EngineError: the engine does not answer.
        """
        what = "the end of a container cannot be waited for"
        with contextlib.suppress(EngineError), self._asked(what) as api:
            api.wait(container, timeout=WAIT_POLL_S)
        with self._asked(what) as api:  # how it stands, whatever ended the wait
            state = api.inspect_container(container)["State"]
            if state["Running"]:
                return None
            said = api.logs(container, tail=20)[-_SAID_BYTES:].decode(errors="replace").splitlines()
        lines = [line.strip() for line in said if line.strip()]
        error = str(state.get("Error") or "")
        return Exit(
            code=int(state["ExitCode"]),
            oom=bool(state["OOMKilled"]),
            said=error or (lines[-1] if lines else ""),
        )

    def kill(self, container: str) -> None:
        """End it at once; harmless where it has ended, or is gone.

        Raises:
            EngineError: the engine does not answer.
        """
        self._harmless("a container cannot be ended", lambda api: api.kill(container))

    def remove(self, container: str) -> None:
        """End and remove it; harmless where it is gone.

        Raises:
            EngineError: the engine does not answer.
        """
        self._harmless(
            "a container cannot be removed",
            lambda api: api.remove_container(container, force=True, v=True),
        )

    # Clean-up

    def of_owner(self, name: str) -> list[str]:
        """Ids of a home's containers, those that have ended included.

        Raises:
            EngineError: the engine does not answer.
        """
        with self._asked("containers cannot be listed") as api:
            found = api.containers(all=True, filters={"label": f"{OWNER_LABEL}={name}"})
        return [str(container["Id"]) for container in found]

    def stale(self) -> dict[str, str]:
        """Containers of owners that are gone: id -> name."""
        with self._asked("containers cannot be listed") as api:
            found = api.containers(all=True, filters={"label": OWNER_LABEL})
        stale = {}
        for container in found:
            maker = owner.of(container["Labels"].get(OWNER_LABEL, ""))
            if maker is not None and maker.is_gone():
                # One that is being removed has no name any more.
                names = container["Names"] or [container["Id"]]
                stale[str(container["Id"])] = str(names[0]).removeprefix("/")
        return stale

    # The connection

    def _connection(self) -> docker.APIClient:
        import docker  # noqa: PLC0415

        path = pathlib.Path(self.address.removeprefix("unix://"))
        if not path.is_socket():  # the SDK leaves open what it cannot connect
            raise FileNotFoundError(errno.ENOENT, "no socket", str(path))
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return docker.APIClient(base_url=self.address, version="auto", timeout=REQUEST_TIMEOUT_S)

    @contextlib.contextmanager
    def _asked(self, what: str) -> Iterator[docker.APIClient]:
        try:
            import docker.errors  # noqa: PLC0415
            import requests.exceptions  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise EngineError(
                "replica.home docker needs the Python package 'docker': "
                "pip install '.[docker]' in a clone"
            ) from error
        api: docker.APIClient | None = None
        is_broken = False
        try:
            api = self._connection()
            yield api
        except docker.errors.NotFound as error:
            raise ContainerGone(f"{what}: {_line(error.explanation)}") from error
        except docker.errors.APIError as error:
            raise EngineError(f"{what}: {_line(error.explanation or error)}") from error
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            OSError,
        ) as error:
            is_broken = True
            raise EngineError(f"{what}: {self._unreachable(error)}") from error
        finally:
            if api is not None and is_broken:
                api.close()
            elif api is not None:
                self._idle.append(api)

    def close(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def _unreachable(self, error: Exception) -> str:
        path = self.address.removeprefix("unix://")
        if not os.path.exists(path):  # noqa: PTH110 - also true for a socket that may not be looked at
            return f"no Docker engine at {path}; start one, or name another's socket by DOCKER_HOST"
        if not os.access(path, os.W_OK):
            return f"this user may not use {path}: it takes root or a member of its group"
        return f"the Docker engine at {path} does not answer ({_line(error)})"

    def _harmless(self, what: str, request: Any) -> None:
        import docker.errors  # noqa: PLC0415

        with self._asked(what) as api, contextlib.suppress(docker.errors.NotFound):
            try:
                request(api)
            except docker.errors.APIError as error:
                if error.status_code != 409:  # it is ending, or being removed, already
                    raise


def _line(said: object) -> str:
    """What the engine or its SDK says, in one line."""
    return " ".join(str(said).split())


def remove_all(engine: ContainerEngine, containers: Sequence[str]) -> None:
    """Remove containers, one that is refused not keeping the others; the first refusal is raised.

    Raises:
        EngineError: one could not be removed.
    """
    first: EngineError | None = None
    for container in containers:
        try:
            engine.remove(container)
        except EngineError as error:
            first = first or error
    if first is not None:
        raise first


def cleanup_stale() -> list[str]:
    """Remove the containers of owners that are gone; returns their names.

    Raises:
        EngineError: the engine cannot be used, or refuses.
    """
    with contextlib.closing(ContainerEngine.connect()) as engine:
        stale = engine.stale()
        remove_all(engine, list(stale))
    return list(stale.values())
