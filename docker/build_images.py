"""Builds the images of the server and of replicas from a wheelhouse, without network in the build.

    python docker/build_images.py [--base IMAGE] [--runtimes onnx,sklearn] [--ray] [--wheel DIR] [--wheelhouse DIR]
                                  [--offline]

In: this checkout, a base image with Python, and a folder with the compiled wheel of this checkout: the images hold
it if it is for the Python and the C library of the base, else the form in pure Python. Out: images
`luthier-replica:VERSION-RUNTIME` and `luthier-server:VERSION-RUNTIME`, with `--ray` also `luthier-ray:VERSION-RUNTIME`,
the server with Ray; those of the runtime onnx are `:VERSION` as well. The runtime `tune` stands for the tuner's image,
`luthier-tune:VERSION`, which loads servers. The wheelhouse is filled from where pip finds packages, for the Python and
the C library of the base image; with `--offline` it must be complete already. Needs a Docker engine (DOCKER_HOST) and
the package `docker`.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

import docker
import docker.errors
import requests
from packaging.utils import parse_wheel_filename

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker"
BUILD = ROOT / "build" / "images"
RUNTIMES = (
    "onnx",
    "sklearn",
    "torch",
    "tensorflow",
    "xgboost",
    "lightgbm",
    "catboost",
    "mlflow",
)
ROLES = {"replica": "replica.Dockerfile", "server": "server.Dockerfile"}
RAY = {"ray": "server.Dockerfile"}
TUNE = "tune"
"""Runtime that stands for the tuner's image."""
PULL_TIMEOUT_S = 600
LEAST_GLIBC = 17
"""Wheels for Linux name the C library 2.17 or a newer one (PEP 600)."""
_FACTS = (
    "import platform, sys; "
    "print(*sys.version_info[:2], *platform.libc_ver(), platform.machine(), sep='|')"
)


class CannotBuild(Exception):
    """Why there are no images, in a line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Build what is asked for; returns the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    own = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    options.add_argument(
        "--base", default=own, help=f"image with Python 3.11 or newer; default {own}"
    )
    options.add_argument(
        "--runtimes", default="onnx", help=f"of {', '.join((*RUNTIMES, TUNE))}; default onnx"
    )
    options.add_argument(
        "--ray", action="store_true", help="also images of the server with Ray (docs/machines.md)"
    )
    options.add_argument(
        "--wheel", type=pathlib.Path, help="folder with a compiled wheel (compiled/wheel.py)"
    )
    options.add_argument(
        "--wheelhouse", type=pathlib.Path, help="folder of wheels; default in build/images"
    )
    options.add_argument("--offline", action="store_true", help="ask no package index")
    arguments = options.parse_args(argv)
    runtimes = arguments.runtimes.split(",")
    known = (*RUNTIMES, TUNE)
    unknown = [runtime for runtime in runtimes if runtime not in known]
    if unknown:
        options.error(
            f"--runtimes {arguments.runtimes}: {unknown[0]!r} is not one of {', '.join(known)}"
        )
    try:
        client = docker.from_env(timeout=PULL_TIMEOUT_S)
        client.ping()
        build(
            client,
            arguments.base,
            runtimes,
            arguments.wheelhouse,
            has_ray=arguments.ray,
            compiled=arguments.wheel,
            is_offline=arguments.offline,
        )
    except CannotBuild as error:
        return _refused(str(error))
    except docker.errors.DockerException as error:
        return _refused(f"the Docker engine refused: {error}; DOCKER_HOST names another one")
    except requests.exceptions.RequestException as error:
        return _refused(f"the Docker engine does not answer: {error}")
    return 0


def _refused(text: str) -> int:
    sys.stderr.write(f"build_images: {text}\n")
    return 1


def build(
    client: docker.DockerClient,
    base: str,
    runtimes: Sequence[str],
    wheelhouse: pathlib.Path | None,
    *,
    has_ray: bool,
    compiled: pathlib.Path | None,
    is_offline: bool,
) -> None:
    """Fill the wheelhouse and build the images of each runtime.

    Raises:
        CannotBuild: the base or a wheel is missing, or a build failed.
    """
    version = _version()
    roles = {**ROLES, **RAY} if has_ray else ROLES
    facts = _facts_of(client, base)
    own = None if compiled is None or is_offline else _fitting(compiled, facts)
    context = BUILD / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    shutil.copytree(FOLDER / "requirements", context / "requirements")
    for runtime in runtimes:
        # Each runtime has its own wheels: what one brings the other image's build need not carry.
        wheels = (wheelhouse or BUILD / "wheelhouse") / runtime
        if not is_offline:
            wanted = _requirements("ray" if has_ray else "server", runtime)
            _fill(wheels, [FOLDER / "requirements" / name for name in wanted], facts, own)
        if not any(wheels.glob("luthier-*.whl")):
            raise CannotBuild(f"{wheels} has no wheel of Luthier; without --offline it is made")
        shutil.rmtree(context / "wheelhouse", ignore_errors=True)
        shutil.copytree(wheels, context / "wheelhouse", copy_function=_linked)
        chosen = {TUNE: f"{TUNE}.Dockerfile"} if runtime == TUNE else roles
        for role, dockerfile in chosen.items():
            name = f"luthier-{role}:{version}"
            tags = [name] if runtime == TUNE else [f"{name}-{runtime}"]
            if runtime == "onnx":
                tags.append(name)
            arguments = {"BASE": base, "REQUIREMENTS": " ".join(_requirements(role, runtime))}
            _build(client, context, dockerfile, arguments, tags)


def _requirements(role: str, runtime: str) -> list[str]:
    """Files of requirements of an image; the one with Ray holds what the server's does."""
    if runtime == TUNE:
        return [f"{TUNE}.txt"]
    if role == "ray":
        return [*_requirements("server", runtime), "ray.txt"]
    return [f"{role}-{runtime}.txt"]


def _version() -> str:
    sys.path.insert(0, str(ROOT))
    from serving import __version__  # noqa: PLC0415 - the checkout's, found only now

    return __version__


def _facts_of(client: docker.DockerClient, base: str) -> tuple[str, int, str]:
    """Python's version ("3.12"), the minor version of glibc and the machine of an image."""
    try:
        said = client.containers.run(
            base, ["python3", "-c", _FACTS], network_mode="none", remove=True, entrypoint=""
        )
    except docker.errors.ImageNotFound as error:
        raise CannotBuild(
            f"no image {base}; --base names another one (docker/README.md)"
        ) from error
    except docker.errors.ContainerError as error:
        raise CannotBuild(f"{base} does not run python3: {error}") from error
    major, minor, library, glibc, machine = said.decode().strip().split("|")
    if (int(major), int(minor)) < (3, 11):
        raise CannotBuild(f"{base} has Python {major}.{minor}; expected 3.11 or newer")
    if library != "glibc":
        raise CannotBuild(f"{base} has no glibc, for which there are wheels of the runtimes")
    return f"{major}.{minor}", int(glibc.split(".")[1]), machine


def _fitting(folder: pathlib.Path, facts: tuple[str, int, str]) -> pathlib.Path | None:
    """The compiled wheel of a folder; None, with the reason said, where there is none for the base."""
    python, glibc, machine = facts
    for wheel in folder.glob("luthier-*.whl"):
        tags = parse_wheel_filename(wheel.name)[3]
        interpreter = f"cp{python.replace('.', '')}"
        platforms = _platforms(glibc, machine)
        if any(tag.interpreter == interpreter and tag.platform in platforms for tag in tags):
            return wheel
        sys.stdout.write(
            f"{wheel.name} is not for Python {python} and glibc 2.{glibc} of the base; "
        )
    sys.stdout.write("the images hold the request path in pure Python\n")
    return None


def _platforms(glibc: int, machine: str) -> list[str]:
    """Names of the platforms whose wheels a base can run."""
    newer = [f"manylinux_2_{minor}_{machine}" for minor in range(LEAST_GLIBC, glibc + 1)]
    return [*newer, f"manylinux2014_{machine}", f"linux_{machine}"]


def _fill(
    wheels: pathlib.Path,
    requirements: Sequence[pathlib.Path],
    facts: tuple[str, int, str],
    own: pathlib.Path | None,
) -> None:
    """Download the wheels that are missing; that of this checkout is `own`, or made in pure Python."""
    python, glibc, machine = facts
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("luthier-*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    target = [f"--platform={name}" for name in _platforms(glibc, machine)]
    target += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:"]
    if own is None:
        _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)])
    else:
        shutil.copy(own, wheels)
    wanted = [f"--requirement={file}" for file in requirements]
    given = ["--dest", str(wheels), "--find-links", str(wheels)]
    _run([*pip, "download", *given, *target, "pip", *wanted])


def _run(command: Sequence[str]) -> None:
    if subprocess.run(command, check=False, cwd=ROOT).returncode:  # noqa: S603 - our own words
        raise CannotBuild(f"no wheels: {' '.join(command[1:5])} failed; its own lines say why")


def _linked(source: str, target: str) -> None:
    pathlib.Path(target).hardlink_to(source)


def _build(
    client: docker.DockerClient,
    context: pathlib.Path,
    dockerfile: str,
    arguments: dict[str, str],
    tags: Sequence[str],
) -> None:
    try:
        image, _ = client.images.build(
            path=str(context),
            dockerfile=str(FOLDER / dockerfile),
            buildargs=arguments,
            tag=tags[0],
            network_mode="none",
            rm=True,
            forcerm=True,
        )
    except docker.errors.BuildError as error:
        lines = [str(part.get("stream", "")).strip() for part in error.build_log]
        last = [line for line in lines if line][-3:]
        raise CannotBuild(f"{tags[0]}: {error.msg}; it said last: {' / '.join(last)}") from error
    for tag in tags[1:]:
        image.tag(tag)
    sys.stdout.write(
        f"{', '.join(tags)}: {image.attrs['Size'] / 2**20:.0f} MiB, on {arguments['BASE']}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
