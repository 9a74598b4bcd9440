"""Engine files: YAML descriptions of a server that the tuner starts.

docs/engines.md lists the keys. `tuner.space` reads the search-space keys (`SPACE_KEYS`), of which
this module needs only the knobs' names and defaults. An `InvalidEngine` names file, key, line, what
was expected and the nearest valid name.
"""

from __future__ import annotations

import pathlib
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

from serving.error_text import nearest
from serving.system import user_files
from tuner import document
from tuner.document import Document, Path
from tuner.engines import description, template
from tuner.engines.description import PROTOCOLS, CommandEngine, RequestFormat
from tuner.errors import InvalidEngine

OWN_KEYS = ("command", "environment", "files", "directory", "ready", "request", "stop")
SPACE_KEYS = ("name", "knobs", "constraints", "equivalence")
LIMITED = ("engine.cpu", "engine.memory_mb")
"""Knobs whose limits the tuner enforces, without a template."""
SIGNALS = {
    "TERM": signal.SIGTERM,
    "INT": signal.SIGINT,
    "QUIT": signal.SIGQUIT,
    "KILL": signal.SIGKILL,
}
METHODS = ("POST", "PUT", "GET")
DATATYPES = ("FP32", "FP64", "INT32", "INT64", "UINT8")
"""Datatypes of the numbers in a raw response."""
MAX_SECONDS = 3600.0
_REQUEST_KEYS: Mapping[str, tuple[str, ...]] = {
    "open-inference": ("protocol", "model", "path", "headers"),
    "tensorflow-serving": ("protocol", "model", "path", "headers"),
    "raw": ("protocol", "path", "method", "headers", "body", "encoding", "answer"),
}
IsName = Callable[[str], bool]
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def read_text(path: pathlib.Path) -> str:
    """Return the text of an engine file, or raise InvalidEngine if it cannot be read."""
    try:
        return user_files.text(path)
    except OSError as error:
        raise InvalidEngine(str(path), "", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidEngine(str(path), "", f"not text in UTF-8: {error.reason}") from error


def parse(text: str, path: pathlib.Path) -> CommandEngine:
    """Parse an engine file, or raise InvalidEngine.

    Args:
        text: content of the file, now or when the study began.
        path: absolute path; its folder is `{folder}`.
    """
    content = document.read(text, str(path), fault=InvalidEngine)
    tree = content.mapping(content.value, ())
    for key in tree:
        content.reject_unknown(key, (*OWN_KEYS, *SPACE_KEYS), (key,), "key")
    for key in ("command", "request", "knobs"):
        if key not in tree:
            raise content.error((), f"`{key}` is missing")
    knobs = content.mapping(tree["knobs"], ("knobs",))
    ready = _group(content, tree, "ready", ("path", "timeout_s"))
    stop = _group(content, tree, "stop", ("signal", "grace_s"))
    name = content.text(tree.get("name", path.stem), ("name",))
    found = CommandEngine(
        name=name,
        file=path,
        text=text,
        command=_words(content, tree["command"], ("command",)),
        environment=_texts(content, tree, ("environment",), _is_variable, "the name of a variable"),
        files=_texts(
            content, tree, ("files",), _is_inside, "a path within the evaluation's work folder"
        ),
        directory=content.text(tree.get("directory", "{work}"), ("directory",)),
        ready_path=_path(content, ready, ("ready", "path")),
        ready_timeout_s=_seconds(
            content, ready, ("ready", "timeout_s"), description.READY_TIMEOUT_S
        ),
        request=_request(content, tree, path.parent),
        stop_signal=_signal(content, stop),
        stop_grace_s=_seconds(content, stop, ("stop", "grace_s"), description.STOP_GRACE_S),
        defaults=_defaults(knobs),
        label=f"{name} (command:{path})",
    )
    _check_places(content, found, tuple(knobs))
    return found


def _defaults(knobs: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: template.format_value(entry["default"])
        for name, entry in knobs.items()
        if isinstance(entry, dict) and isinstance(entry.get("default"), int | float | str)
    }


def _group(
    content: Document, tree: Mapping[str, Any], name: str, keys: tuple[str, ...]
) -> dict[str, Any]:
    group = content.mapping(tree.get(name, {}), (name,))
    for key in group:
        content.reject_unknown(key, keys, (name, key), "key")
    return group


def _words(content: Document, given: object, path: Path) -> tuple[str, ...]:
    if isinstance(given, str):
        raise content.error(path, f'{given!r}, expected a list of words: ["program", "argument"]')
    return tuple(
        _word(content, item, (*path, i)) for i, item in enumerate(content.items(given, path))
    )


def _word(content: Document, given: object, path: Path) -> str:
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        text = str(given)
        if "\0" not in text:
            return text
    raise content.error(path, f"{given!r}, expected a text; quote it")


def _texts(
    content: Document, tree: Mapping[str, Any], path: Path, is_name: IsName, expected: str
) -> dict[str, str]:
    given = content.mapping(tree.get(str(path[-1]), {}), path)
    for name in given:
        if not is_name(name):
            raise content.error((*path, name), f"expected {expected}")
    return {name: _word(content, value, (*path, name)) for name, value in given.items()}


def _is_variable(name: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name


def _is_inside(name: str) -> bool:
    place = pathlib.PurePosixPath(name)
    return not place.is_absolute() and bool(place.name) and ".." not in place.parts


def _is_header(name: str) -> bool:
    return _HEADER.fullmatch(name) is not None


def _path(content: Document, group: Mapping[str, Any], path: Path) -> str | None:
    key = str(path[-1])
    if key not in group:
        return None
    given = content.text(group[key], path)
    if not re.fullmatch(r"/[!-~]*", given):
        raise content.error(path, f"{given!r}, expected /... in ASCII, without spaces")
    return given


def _seconds(content: Document, group: Mapping[str, Any], path: Path, default: float) -> float:
    given = content.number(group.get(str(path[-1]), default), path)
    if not 0 < given <= MAX_SECONDS:
        raise content.error(path, f"{given:g}, expected seconds above 0 to {MAX_SECONDS:g}")
    return given


def _signal(content: Document, stop: Mapping[str, Any]) -> signal.Signals:
    given = content.text(stop.get("signal", "TERM"), ("stop", "signal"))
    content.reject_unknown(given, SIGNALS, ("stop", "signal"), "signal")
    return SIGNALS[given]


def _request(content: Document, tree: Mapping[str, Any], folder: pathlib.Path) -> RequestFormat:
    group = content.mapping(tree["request"], ("request",))
    if "protocol" not in group:
        raise content.error(("request",), f"`protocol` is missing, expected {', '.join(PROTOCOLS)}")
    name = content.text(group["protocol"], ("request", "protocol"))
    content.reject_unknown(name, PROTOCOLS, ("request", "protocol"), "protocol")
    for key in group:
        content.reject_unknown(
            key, _REQUEST_KEYS[name], ("request", key), f"key of a {name} request"
        )
    if name == "raw" and "path" not in group:
        raise content.error(("request",), "a raw request needs a `path`")
    method = content.text(group.get("method", "POST"), ("request", "method"))
    content.reject_unknown(method, METHODS, ("request", "method"), "method")
    encoding = content.text(group.get("encoding", "file"), ("request", "encoding"))
    content.reject_unknown(encoding, ("file", "tensor"), ("request", "encoding"), "encoding")
    body = None
    if "body" in group:
        body = folder / content.text(group["body"], ("request", "body"))
        if encoding == "tensor":
            raise content.error(
                ("request", "body"), "a request of encoding tensor takes no body file"
            )
    answer = None
    if "answer" in group:
        answer = content.text(group["answer"], ("request", "answer"))
        content.reject_unknown(answer, DATATYPES, ("request", "answer"), "datatype")
    return RequestFormat(
        protocol=next(known for known in PROTOCOLS if known == name),
        model=content.text(group["model"], ("request", "model")) if "model" in group else None,
        path=_path(content, group, ("request", "path")),
        method=method,
        headers=_texts(content, group, ("request", "headers"), _is_header, "the name of a header"),
        body=body,
        is_tensor=encoding == "tensor",
        answer=answer,
    )


def _check_places(content: Document, found: CommandEngine, knobs: tuple[str, ...]) -> None:
    valid = (*knobs, *template.BUILT_IN)
    texts: dict[Path, str] = {("command", i): word for i, word in enumerate(found.command)}
    texts |= {("environment", name): text for name, text in found.environment.items()}
    texts |= {("files", name): text for name, text in found.files.items()}
    texts[("directory",)] = found.directory
    for path, text in texts.items():
        for name in template.names([text]):
            if name not in valid and not template.is_port(name):
                raise content.error(
                    path,
                    f"{{{name}}} is neither a knob of this file nor one of "
                    f"{', '.join(template.BUILT_IN)}{nearest(name, valid)}; write "
                    f"{{{{{name}}}}} for the literal text",
                )
            if name in LIMITED:
                raise content.error(
                    path, f"{{{name}}}: the tuner enforces it, so no template may use it"
                )
    if "port" not in found.places:
        raise content.error(
            ("command",), "no template uses {port}, the port on which the server must listen"
        )
    for name in knobs:
        if template.is_built_in(name):
            raise content.error(("knobs", name), "the name is a built-in placeholder of templates")
        if name not in found.knobs and name not in LIMITED:
            raise content.error(
                ("knobs", name), f"no template uses {{{name}}}, so the knob would have no effect"
            )
