"""Models and versions on the admin port.

    GET    /admin/models                          every model, with its versions, ...
    POST   /admin/models                          {"model": NAME|PATH, "name", "version",
                                                  "current": true}: deploy
    GET    /admin/models/NAME                     one model
    PUT    /admin/models/NAME/current             {"version"}: a version or a label
    POST   /admin/models/NAME/rollback            return to the previous version
    PUT    /admin/models/NAME/labels/LABEL        {"version"}; DELETE: remove the label
    PUT    /admin/models/NAME/traffic             {"shares": {VERSION: SHARE}}; the current
                                                  version gets the rest
    PUT    /admin/models/NAME/shadow              {"version"}; DELETE: end shadowing
    DELETE /admin/models/NAME/versions/VERSION    remove it once its requests finish;
                                                  removing the last version also removes
                                                  the model's settings, except those given
                                                  at startup

Every route returns the same body as GET. Model paths are read with the server's permissions, so
these routes are for its operator only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

from aiohttp import web

from serving import zoo
from serving.engine.engine import Engine
from serving.engine.repository import Repository
from serving.errors import InvalidRequest
from serving.settings import ServingSettings


class ModelRoutes:
    """Handlers for the model routes."""

    def __init__(
        self, engine: Engine, repository: Repository | None, given: ServingSettings
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._given = given

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register the routes."""
        one = "/admin/models/{name}"
        router.add_get("/admin/models", self._list)
        router.add_post("/admin/models", self._deploy)
        router.add_get(one, self._show)
        router.add_put(f"{one}/current", self._set_current)
        router.add_post(f"{one}/rollback", self._roll_back)
        router.add_put(f"{one}/labels/{{label}}", self._set_label)
        router.add_delete(f"{one}/labels/{{label}}", self._set_label)
        router.add_put(f"{one}/traffic", self._set_traffic)
        router.add_put(f"{one}/shadow", self._set_shadow)
        router.add_delete(f"{one}/shadow", self._set_shadow)
        router.add_delete(f"{one}/versions/{{version}}", self._retire)

    async def _list(self, _request: web.Request) -> web.Response:
        names = dict.fromkeys(id_.name for id_ in self._engine.states())
        return web.json_response({"models": [self._describe_model(name) for name in names]})

    async def _show(self, request: web.Request) -> web.Response:
        self._engine.catalogue.entry(request.match_info["name"])
        return self._answer(request)

    async def _deploy(self, request: web.Request) -> web.Response:
        data = await _data(request, {"model": str, "name": str, "version": str, "current": bool})
        # In a thread: the disk may be slow.
        spec = await asyncio.to_thread(zoo.find, _require(data, "model"), name=data.get("name"))
        if "version" in data:
            spec = dataclasses.replace(spec, version=data["version"])
        await self._engine.deploy(spec, current=data.get("current", True))
        return web.json_response(self._describe_model(spec.name), status=201)

    async def _set_current(self, request: web.Request) -> web.Response:
        version = await _version(request)
        if self._repository is not None:
            await self._repository.set_version(request.match_info["name"], version)
        else:
            self._engine.catalogue.set_current(request.match_info["name"], version)
        return self._answer(request)

    async def _roll_back(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if self._repository is not None:
            await self._repository.roll_back(name)
        else:
            self._engine.catalogue.roll_back(name)
        return self._answer(request)

    async def _set_label(self, request: web.Request) -> web.Response:
        version = None if request.method == "DELETE" else await _version(request)
        self._engine.catalogue.set_label(
            request.match_info["name"], request.match_info["label"], version
        )
        return self._answer(request)

    async def _set_traffic(self, request: web.Request) -> web.Response:
        shares = (await _data(request, {"shares": dict})).get("shares", {})
        if not all(type(share) in {int, float} for share in shares.values()):
            raise InvalidRequest(f"shares are {shares!r:.200}, expected a number for each version")
        self._engine.catalogue.set_shares(request.match_info["name"], shares)
        return self._answer(request)

    async def _set_shadow(self, request: web.Request) -> web.Response:
        version = None if request.method == "DELETE" else await _version(request)
        self._engine.catalogue.set_shadow(request.match_info["name"], version)
        return self._answer(request)

    async def _retire(self, request: web.Request) -> web.Response:
        name, version = request.match_info["name"], request.match_info["version"]
        ending = await self._engine.withdraw(name, version)
        async with self._engine.editing:
            if name not in {id_.name for id_ in self._engine.models()}:
                settings = self._engine.settings.with_overrides_of(name, self._given)
                if settings != self._engine.settings:
                    await self._engine.apply(settings, keep_learned=True)
        if ending is not None:
            await asyncio.shield(ending)
        return self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        return web.json_response(self._describe_model(request.match_info["name"]))

    def _describe_model(self, name: str) -> dict[str, Any]:
        states = {id_: state for id_, state in self._engine.states().items() if id_.name == name}
        loaded = {
            served.id: served.last_load | served.placement.facts
            for served in self._engine.deployments()
        }
        data: dict[str, Any] = {
            "name": name,
            "versions": {
                id_.version: {"state": state}
                | ({"reason": reason} if reason else {})
                | loaded.get(id_, {})
                for id_, (state, reason) in states.items()
            },
        }
        if name in {id_.name for id_ in self._engine.models()}:
            entry = self._engine.catalogue.entry(name)
            data |= {
                "current": entry.current,
                "previous": entry.previous,
                "labels": entry.labels,
                "shares": entry.shares,
                "shadow": entry.shadow,
            }
        return data


_WORDS = {str: 'a text, as "1"', bool: "true or false", dict: "an object"}


async def _data(request: web.Request, keys: dict[str, type]) -> dict[str, Any]:
    body = await request.read()
    expected = ", ".join(keys)
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the body is not JSON ({error}); expected an object with {expected}"
        ) from error
    if not isinstance(data, dict) or not data.keys() <= keys.keys():
        shown = body[:200].decode("utf-8", "replace")
        raise InvalidRequest(f"the body is {shown}, expected a JSON object with {expected}")
    for key, value in data.items():
        if not isinstance(value, keys[key]):
            raise InvalidRequest(f"{key} is {json.dumps(value):.200}, expected {_WORDS[keys[key]]}")
    return data


async def _version(request: web.Request) -> str:
    return _require(await _data(request, {"version": str}), "version")


def _require(data: dict[str, Any], key: str) -> str:
    if key not in data:
        raise InvalidRequest(
            f'the body has no {key!r}; expected a JSON object with it, as {{"{key}": "..."}}'
        )
    return str(data[key])
