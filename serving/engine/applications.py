"""Applications, whose policies send each query to one or more models and learn from feedback.

A query is answered within the application's SLO, with the outputs that have arrived. A `fixed`
application with one model and no confidence threshold passes responses on unchanged. Call methods
only from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from serving.deployment.deployment import InferRequest
from serving.engine.engine import Engine
from serving.engine.inflight_query import (
    InflightQuery,
    ModelResponseHandler,
    Respond,
    ServedApplication,
)
from serving.errors import InvalidRequest, NotReady, ServingError, UnknownModel
from serving.response_handler import RequestHandle
from serving.selection import model_output
from serving.selection.application import Application
from serving.selection.decisions import input_hash
from serving.selection.feedback_exchange import FeedbackExchange
from serving.selection.policy import Query as Asking
from serving.selection.stores.state_store import EVERYBODY, StateStore
from serving.values import Signature

log = logging.getLogger(__name__)


class QueryInput(Protocol):
    """A query's input, parsed by a protocol's codec."""

    @property
    def key(self) -> bytes:
        """Bytes that are the same for equal inputs; they match feedback to queries."""
        ...

    def query(self, signature: Signature, timeout_s: float | None = None) -> InferRequest:
        """Return a request for a model, or raise `InvalidRequest` if the input does not fit it."""
        ...


class Applications:
    """All applications of one gateway."""

    def __init__(
        self,
        engine: Engine,
        store: StateStore | FeedbackExchange,
        *,
        draw: Callable[[], float] = random.random,
        first_id: int = 1,
    ) -> None:
        """Start without applications.

        `store` is an exchange if other gateways learn from the same feedback. `draw` returns numbers
        in [0, 1). `first_id` must exceed the query ids of earlier processes, for which clients may
        still send feedback; an exchange has ids of its own.
        """
        self._engine = engine
        self._store = store
        self._draw = draw
        self._apps: dict[str, ServedApplication] = {}
        self._next_id: Callable[[], int] = itertools.count(first_id).__next__
        self._exchange: FeedbackExchange | None = None
        if isinstance(store, FeedbackExchange):
            self._exchange, self._next_id = store, store.next_id

    # Applications and their links

    def all(self) -> tuple[Application, ...]:
        """Return all applications."""
        return tuple(app.application for app in self._apps.values())

    def application(self, name: str) -> Application | None:
        """Return the application with this name, or None."""
        app = self._apps.get(name)
        return None if app is None else app.application

    def add(self, application: Application) -> None:
        """Add an application, which resumes any state saved under its name.

        Raises:
            InvalidRequest: the name is taken.
        """
        if application.name in self._apps:
            raise InvalidRequest(f"application {application.name!r} already exists")
        self._apps[application.name] = ServedApplication(application, self._store)

    def delete(self, name: str) -> None:
        """Delete an application and its policy's state."""
        self._of(name)
        del self._apps[name]
        self._store.delete(name)

    def adopt(self, name: str, application: Application | None) -> None:
        """Take over another gateway's change: a new or changed application, or None if deleted.

        Raises:
            InvalidSettings: an option of its policy is invalid.
        """
        app = self._apps.get(name)
        if app is not None and application is not None:
            if app.application == application:
                return
            if dataclasses.replace(app.application, models=application.models) == application:
                app.change(application)
                return
        # Deleted, or deleted and added with another policy: its states are not those of before.
        self._apps.pop(name, None)
        if self._exchange is not None:
            self._exchange.detach(name)
        if application is not None:
            self.add(application)

    def link(self, name: str, models: Sequence[str]) -> None:
        """Link models to an application.

        Raises:
            InvalidSettings: a model is already linked.
        """
        app = self._of(name)
        app.change(app.application.with_models(*models))

    def unlink(self, name: str, models: Sequence[str]) -> None:
        """Unlink models from an application.

        Raises:
            InvalidSettings: a model is not linked.
        """
        app = self._of(name)
        app.change(app.application.without_models(*models))

    def state(self, name: str, user: str = EVERYBODY) -> Mapping[str, Any]:
        """Return a user's policy state and the decision counts."""
        app = self._of(name)
        state = app.contexts.state(user)
        decisions = app.decisions
        return {
            "application": name,
            "policy": app.application.policy,
            "user": user,
            "weights": dict(app.selector.policy.weights(state)) if state.models else {},
            "state": dataclasses.asdict(state),
            "decisions": {
                "waiting": len(decisions),
                "joined": decisions.joined,
                "unmatched": decisions.unmatched,
                "dropped": decisions.dropped,
            },
            "state_misses": app.contexts.state_misses,
        }

    def state_misses(self) -> dict[str, int]:
        """Return by application how many queries had an unreadable state."""
        return {name: app.contexts.state_misses for name, app in self._apps.items()}

    # Queries

    def model_versions(self, model: str) -> tuple[str, ...]:
        """Return the served versions of a model."""
        try:
            return self._engine.versions(model)
        except UnknownModel:
            return ()

    def ask(
        self,
        application: str,
        question: QueryInput,
        respond: Respond,
        *,
        version: str | None = None,
        user: str = EVERYBODY,
    ) -> RequestHandle:
        """Accept a query; `respond` is called once, after this method has returned.

        `version` selects a version of the linked model; the application must have exactly one.

        Raises:
            InvalidRequest: none of the chosen models accepts the input.
        """
        app = self._of(application)
        now_s = time.monotonic()
        asking = Asking(id=self._next_id(), user=user, input_hash=input_hash(question.key))
        state = app.contexts.for_query(user)
        pending = app.selector.begin(asking, state, draw=self._draw(), now_s=now_s)
        asked = InflightQuery(app, pending, respond)
        slo_s = app.application.latency_slo_s
        wrong: InvalidRequest | None = None
        taken = 0
        try:
            for model in pending.models:
                try:
                    target = self._engine.resolve(model, version)
                    query = question.query(target.signature, slo_s)
                    handler = ModelResponseHandler(asked, model, target, now_s)
                    asked.add_ticket(model, target.submit(query, handler, application))
                    taken += 1
                except InvalidRequest as error:
                    wrong = error
                    pending.record_failure(model)
                except ServingError as error:
                    log.debug(
                        "a model cannot be queried", extra={"model": model, "why": str(error)}
                    )
                    pending.record_failure(model)
            if wrong is not None and not taken:
                raise wrong
        except BaseException:  # nobody waits for the models already asked
            asked.cancel()
            raise
        asked.wait(asyncio.get_running_loop(), slo_s)
        return asked

    def feedback(
        self,
        application: str,
        label: float | str,
        *,
        user: str,
        input_key: bytes,
        query_id: int | None = None,
        is_last: bool = True,
    ) -> bool:
        """Learn from a true label; return False if it does not match a decision.

        That is counted if this try `is_last`. Without a query id, the label is for the user's newest
        query with this input.

        Raises:
            InvalidRequest: the label does not fit the application.
            NotReady: the learned state cannot be read now; the feedback may be repeated.
        """
        app = self._of(application)
        truth = model_output.true_label(app.application.task, label)
        if query_id is not None:
            decision = app.decisions.find(query_id)
        else:
            decision = app.decisions.find_by_input(user, input_hash(input_key))
        if decision is None:
            app.decisions.unmatched -= not is_last
            return False
        app.contexts.observe(decision, truth)
        app.decisions.join(decision)
        return True

    def flush(self) -> None:
        """Wait until learned and deleted states are durable; thread-safe.

        Raises:
            NotReady: a write failed and will be retried.
        """
        self._store.flush()

    def close(self) -> None:
        """Make learned states durable."""
        self._store.close()

    @property
    def hears_late(self) -> bool:
        """Whether a decision that feedback does not match may still come from another gateway."""
        return self._exchange is not None

    async def exchange(self) -> None:
        """Exchange feedback with other gateways, if there may be any, until cancelled."""
        if self._exchange is not None:
            await self._exchange.run()

    async def finish_exchange(self) -> None:
        """Exchange what is there, before the end; what fails is logged by `close`."""
        if self._exchange is not None:
            with contextlib.suppress(NotReady):
                await self._exchange.sync(save=True)

    def _of(self, name: str) -> ServedApplication:
        app = self._apps.get(name)
        if app is None:
            raise InvalidRequest(
                f"application {name!r} is not known (known: {', '.join(self._apps) or 'none'})"
            )
        return app
