"""Admin port on aiohttp: live settings, replicas, health and metrics.

    GET   /admin/settings    settings in force, their generation, and the models
    PATCH /admin/settings    {"settings": {...}, "restart_replicas": false, "keep_learned": false}
    GET   /admin/replicas    replicas with their use, and deaths since settings last changed
          /admin/models      see `model_routes`
    POST  /admin/add_app ... see `clipper.management`
    POST  /admin/shutdown    finish accepted requests, then exit; ?graceful=false: exit at once
    GET   /metrics           Prometheus
    GET   /health            200 when ready, otherwise 503

Responses carry the revision of the saved state as `ETag`. A change with it in `If-Match` is refused
with 409 if the state has changed since, as is one that another gateway's change overtakes.

Health needs no token, and neither do metrics if the server generated the token.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from serving.api.admin.model_routes import ModelRoutes
from serving.api.clipper import management
from serving.api.clipper.service import ClipperService
from serving.api.http.access import Token
from serving.api.transport.trusted_hosts import TrustedHosts, is_foreign
from serving.engine import facts
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.error_text import rename_hint
from serving.errors import (
    AcceleratorUnavailable,
    InvalidRequest,
    InvalidSettings,
    LimitsUnavailable,
    ReplicaStartFailed,
    ServingError,
)
from serving.settings import SETTINGS, ServingSettings

MAX_BODY_BYTES = 1024 * 1024
_MAX_DIGITS = 20
HTTP_LOG = logging.getLogger("aiohttp.server.admin")
ADMIN_REFUSAL = (
    "the admin port requires its token; send the field Authorization: Bearer TOKEN; the "
    "ready line says where it is (docs/serving.md)"
)
_HEALTH, _METRICS = "/health", "/metrics"
_ROUTES = (
    "available are /admin/models (docs/versions.md), /admin/settings and /admin/replicas "
    "(docs/serving.md), /admin/add_app and Clipper's other commands "
    "(docs/protocol-clipper.md), /metrics and /health"
)


def _is_server_error(record: logging.LogRecord) -> bool:
    """Whether a log record concerns anything but malformed HTTP from a client."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


HTTP_LOG.addFilter(_is_server_error)


class AdminRoutes:
    """Handlers of the admin port."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository | None = None,
        *,
        clipper: ClipperService | None = None,
        metrics: Callable[[], Iterable[bytes]],
        token: Token | None = None,
        has_open_metrics: bool = False,
        hosts: TrustedHosts | None = None,
        changing: Callable[[int | None], AbstractAsyncContextManager[None]] | None = None,
        revision: Callable[[], int] | None = None,
        stop: Callable[[], None] | None = None,
        given: ServingSettings | None = None,
    ) -> None:
        """Store the arguments without listening yet.

        Args:
            metrics: returns metrics in Prometheus's format, in pieces.
            token: the required token, or None to allow access without one.
            has_open_metrics: whether metrics need no token.
            hosts: the trusted hosts, or None to trust any host.
            changing: makes a change, which its body makes, durable before the response is sent; takes
                the revision that the change must be made on, or None for any.
            revision: returns the number of the state's revision, if it has one.
            stop: ends the server gracefully, or at once when called again.
            given: settings at startup; default: the current settings.
        """
        self._engine = engine
        self._models = ModelRoutes(engine, repository, given or engine.settings)
        self._clipper = clipper
        self._metrics = metrics
        self._token = token
        self._open = {_HEALTH, _METRICS} if has_open_metrics else {_HEALTH}
        self._hosts = hosts
        self._changing = changing
        self._revision = revision
        self._stop = stop

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        application = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[self._admit, _errors_as_json, self._save_changes],
        )
        application.router.add_get("/admin/settings", self._get_settings)
        application.router.add_patch("/admin/settings", self._patch_settings)
        application.router.add_get("/admin/replicas", self._get_replicas)
        self._models.add_to(application.router)
        if self._clipper is not None:
            application.router.add_get(management.PING, self._command)
            for path in management.PATHS:
                application.router.add_post(path, self._command)
        if self._stop is not None:
            application.router.add_post("/admin/shutdown", self._shutdown)
        application.router.add_get(_METRICS, self._get_metrics)
        application.router.add_get(_HEALTH, self._get_health)
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self._hosts is not None and request.path != _HEALTH:
            host = request.headers.get("Host")
            text = None if host is None else self._hosts.refusal(host)
            if text is not None:
                return web.json_response({"error": text}, status=403)
        site = request.headers.get("Sec-Fetch-Site", "none").encode()
        is_page = "Origin" in request.headers or is_foreign(site, None, None)
        if is_page and request.method != "GET":
            return web.json_response({"error": "web pages may not change this server"}, status=403)
        if (
            self._token is not None
            and request.path not in self._open
            and not self._token.allows(
                request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            )
        ):
            return web.json_response(
                {"error": ADMIN_REFUSAL}, status=401, headers={"WWW-Authenticate": "Bearer"}
            )
        response: web.StreamResponse = await handler(request)
        return response

    @web.middleware
    async def _save_changes(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self._changing is None or request.method == "GET":
            response: web.StreamResponse = await handler(request)
        else:
            async with self._changing(_revision(request)):
                response = await handler(request)
        if self._revision is not None:
            response.headers["ETag"] = f'"{self._revision()}"'
        return response

    async def _command(self, request: web.Request) -> web.Response:
        assert self._clipper is not None
        body = await request.read()
        status, text = await management.execute(self._clipper, request.path, body)
        return web.Response(status=status, text=text, content_type="application/json")

    async def _shutdown(self, request: web.Request) -> web.Response:
        graceful = request.query.get("graceful", "true")
        if graceful not in {"true", "false"}:
            raise InvalidRequest(f"graceful is {graceful!r:.40}, expected true or false")
        assert self._stop is not None
        for _ in range(1 if graceful == "true" else 2):
            self._stop()
        return web.json_response({"stopping": True})

    async def _get_settings(self, _request: web.Request) -> web.Response:
        engine = self._engine
        out_of_sync = engine.out_of_sync()
        return web.json_response(
            {
                "generation": engine.generation,
                "settings": engine.settings.as_nested(),
                **({"out_of_sync": out_of_sync} if out_of_sync else {}),
                "limits": engine.limits,
                "models": [
                    {
                        "name": served.id.name,
                        "version": served.id.version,
                        "kind": served.spec.kind,
                        "signature": served.signature.as_json(),
                        "device": served.last_load.get("device"),
                    }
                    for served in engine.deployments()
                ],
            }
        )

    async def _patch_settings(self, request: web.Request) -> web.Response:
        values, fresh, keep_learned = _patch(await request.read())
        async with self._engine.editing:  # changes run one after another
            settings = self._engine.settings.with_changes(values, source="PATCH /admin/settings")
            served = {id_.name for id_ in self._engine.models()}
            _check_live(self._engine.settings, settings, served)
            seconds = await self._engine.apply(settings, fresh=fresh, keep_learned=keep_learned)
            generation = self._engine.generation
        return web.json_response(
            {
                "generation": generation,
                "settings": settings.as_nested(),
                "applied_s": seconds,
                "warnings": self._engine.notes(),
            }
        )

    async def _get_replicas(self, _request: web.Request) -> web.Response:
        return web.json_response(facts.replicas(self._engine))

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        pieces = []
        for piece in self._metrics():
            pieces.append(piece)
            await asyncio.sleep(0)
        return web.Response(
            body=b"".join(pieces),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _get_health(self, _request: web.Request) -> web.Response:
        ready = self._engine.ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)


def _revision(request: web.Request) -> int | None:
    """Return the revision that a change must be made on (If-Match), or None for any."""
    text = request.headers.get("If-Match", "*").strip()
    if text == "*":
        return None
    number = text.removeprefix("W/").strip('"')
    if not (number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS):
        raise InvalidRequest(
            f'If-Match is {text:.40}, expected the ETag of an earlier response, as "7"'
        )
    return int(number)


def _patch(body: bytes) -> tuple[dict[str, Any], bool, bool]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"the body is not JSON: {error}") from error
    expected = {"settings", "restart_replicas", "keep_learned"}
    if not isinstance(data, dict) or not data.keys() <= expected:
        hints = [rename_hint(key, expected) for key in data] if isinstance(data, dict) else []
        old = next((f"{key!r}{hint}; " for key, hint in zip(data, hints, strict=False) if hint), "")
        raise InvalidSettings(
            f"{old}"
            'expected {"settings": {"batching.max_size": 8, ...}, "restart_replicas": false, '
            f'"keep_learned": false}}, got {body[:200].decode("utf-8", "replace")}'
        )
    values = data.get("settings", {})
    flags = [data.get(name, False) for name in ("restart_replicas", "keep_learned")]
    if not isinstance(values, dict) or not all(isinstance(flag, bool) for flag in flags):
        raise InvalidSettings(
            "settings must be an object, restart_replicas and keep_learned booleans"
        )
    return values, flags[0], flags[1]


def _check_live(old: ServingSettings, new: ServingSettings, served: Collection[str]) -> None:
    groups = {"": (old, new)}
    groups |= {f"models.{model}.": (old.of(model), new.of(model)) for model in served}
    for prefix, (then, now) in groups.items():
        before, after = then.flat(), now.flat()
        for name, knob in SETTINGS.items():
            if not knob.live and before[name] != after[name]:
                raise InvalidSettings(
                    f"{prefix}{name} cannot change while the server runs ({before[name]!r} to "
                    f"{after[name]!r}); restart it"
                )


@web.middleware
async def _errors_as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except ReplicaStartFailed as error:
        return web.json_response({"error": str(error), "reason": error.reason}, status=409)
    except (AcceleratorUnavailable, LimitsUnavailable) as error:
        return web.json_response({"error": str(error), "reason": "limits"}, status=409)
    except ServingError as error:
        if error.status == 500:
            return web.json_response({"error": str(error), "reason": "load"}, status=409)
        return web.json_response({"error": str(error)}, status=error.status)
    except web.HTTPNotFound:
        return web.json_response({"error": f"no route {request.path!r}; {_ROUTES}"}, status=404)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        text = f"{request.method} {request.path} is not allowed, use {allowed}"
        return web.json_response({"error": text}, status=405, headers={"Allow": allowed})
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)
    return response
