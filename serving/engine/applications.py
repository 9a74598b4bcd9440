"""Applications: a policy sends each query to one or more models and learns from feedback.

A query is answered within the application's SLO, with the outputs that have arrived. A `fixed`
application with one model and no confidence threshold passes any response on unchanged. Policies
are pure (`serving.selection`). All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from serving import wire
from serving.deployment.deployment import InferRequest
from serving.engine.engine import DeploymentHandle, Engine
from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    ServingError,
    UnknownModel,
)
from serving.response_handler import RequestHandle
from serving.selection import model_output
from serving.selection.application import Application
from serving.selection.decisions import DecisionLog, input_hash
from serving.selection.policy import Query as Asking
from serving.selection.query_session import QueryResponse, QuerySession, Selector
from serving.selection.stores.state_store import EVERYBODY, StateStore
from serving.selection.user_states import UserStates
from serving.values import Signature

log = logging.getLogger(__name__)


class QueryInput(Protocol):
    """One query input, parsed by a protocol's codec."""

    @property
    def key(self) -> bytes:
        """Bytes that are equal for equal inputs; feedback is joined by them."""
        ...

    def query(self, signature: Signature, timeout_s: float | None = None) -> InferRequest:
        """Return the request for a model; raise InvalidRequest if it does not fit."""
        ...


class Feedback(Protocol):
    """The true label of an input."""

    @property
    def user(self) -> str:
        """User who sent the query."""
        ...

    @property
    def input(self) -> QueryInput:
        """Query input."""
        ...

    @property
    def label(self) -> float | str:
        """True label."""
        ...

    @property
    def query_id(self) -> int | None:
        """Query id, if the client kept it."""
        ...


class QueryResponseHandler(Protocol):
    """Response handler of a query."""

    def answered(self, result: QueryResponse) -> None:
        """Receive the response: called once, within the latency SLO."""
        ...


class _App:
    """One application with its user states and decisions."""

    __slots__ = ("application", "contexts", "decisions", "selector")

    def __init__(self, application: Application, store: StateStore) -> None:
        self.application = application
        self.selector = Selector(application)
        self.contexts = UserStates(self.selector, store)
        self.decisions = DecisionLog()

    def change(self, application: Application) -> None:
        self.application = application
        self.selector = Selector(application)
        self.contexts.relink(self.selector)


class _InflightQuery:
    """In-flight query."""

    __slots__ = ("_app", "_asker", "_passes", "_pending", "_tickets", "_timer")

    def __init__(self, app: _App, pending: QuerySession, asker: QueryResponseHandler) -> None:
        self._app = app
        self._pending = pending
        self._asker: QueryResponseHandler | None = asker
        self._tickets: dict[str, RequestHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        application = app.application
        # A threshold needs the output's confidence.
        self._passes = (
            application.policy == "fixed"
            and len(pending.models) == 1
            and not application.confidence_threshold
        )

    def sent(self, model: str, ticket: RequestHandle) -> None:
        """Add a model's ticket."""
        self._tickets[model] = ticket

    def wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Start the SLO timer; respond at once if no model will."""
        if self._pending.is_complete:
            loop.call_soon(self._finish)
        else:
            self._timer = loop.call_later(seconds, self._finish)

    def arrived(self, model: str, frame: memoryview) -> None:
        """Add a model's response."""
        self._tickets.pop(model, None)
        if self._asker is None:
            return
        if self._passes:
            self._pass_on(model, frame)
            return
        try:
            (answer,) = model_output.model_outputs(
                self._app.application.task, wire.decode_frame(frame)
            )
        except (ServingError, ValueError) as error:
            log.warning("an answer cannot be combined", extra={"model": model, "why": str(error)})
            self.failed(model)
            return
        if self._pending.arrived(model, answer) or not self._tickets:
            self._finish()

    def failed(self, model: str) -> None:
        """Drop a failed model."""
        self._tickets.pop(model, None)
        if self._pending.failed(model) or not self._tickets:
            self._finish()

    def late(self, model: str) -> None:
        """Drop a model that is too late; it counts as missing."""
        self._tickets.pop(model, None)
        if not self._tickets:
            self._finish()

    def cancel(self) -> None:
        """Drop the query; its client is gone."""
        self._asker = None
        self._end()

    def _pass_on(self, model: str, frame: memoryview) -> None:
        """Pass on the only model's response; log the decision if readable."""
        try:
            (answer,) = model_output.model_outputs(
                self._app.application.task, wire.decode_frame(frame)
            )
        except (ServingError, ValueError):
            answer = None
        if answer is not None:
            self._pending.arrived(model, answer)
            self._app.decisions.put(self._pending.finish().decision)
        self._say(QueryResponse(self._pending.query.id, frame))

    def _finish(self) -> None:
        if self._asker is None:
            return
        finished = self._pending.finish()
        self._app.decisions.put(finished.decision)
        result = finished.result
        several = len(self._pending.models) > 1
        self._say(
            QueryResponse(
                query_id=result.query_id,
                output=None if result.is_default else result.output,
                is_default=result.is_default,
                explanation=result.explanation,
                confidence=result.confidence if several else None,
                is_suspicious=several and result.is_suspicious,
            )
        )

    def _say(self, answered: QueryResponse) -> None:
        asker, self._asker = self._asker, None
        self._end()
        if asker is not None:
            asker.answered(answered)

    def _end(self) -> None:
        """Cancel the timer and outstanding requests."""
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()


class _ModelResponseHandler:
    """Response handler of one model for one query."""

    __slots__ = ("_asked", "_model", "_started_s", "_target")

    def __init__(
        self, asked: _InflightQuery, model: str, target: DeploymentHandle, started_s: float
    ) -> None:
        self._asked = asked
        self._model = model
        self._target = target
        self._started_s = started_s

    def answer(self, frame: memoryview) -> None:
        self._target.done(200, time.monotonic() - self._started_s)
        self._asked.arrived(self._model, frame)

    def refuse(self, error: ServingError) -> None:
        self._target.done(error.status, time.monotonic() - self._started_s)
        if isinstance(error, DeadlineExceeded | CannotFinish | CannotLoad):
            self._asked.late(self._model)
        else:
            self._asked.failed(self._model)


class Applications:
    """All applications of one gateway."""

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        *,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        first_id: int = 1,
    ) -> None:
        """Start without applications.

        `draw` returns numbers in [0, 1). `first_id` must exceed earlier processes' query ids, as
        clients may still send feedback for them.
        """
        self._engine = engine
        self._store = store
        self._draw = draw
        self._clock = clock
        self._apps: dict[str, _App] = {}
        self._ids = itertools.count(first_id)

    # Applications and their links

    def all(self) -> tuple[Application, ...]:
        """Return all applications."""
        return tuple(app.application for app in self._apps.values())

    def application(self, name: str) -> Application | None:
        """Return an application, or None."""
        app = self._apps.get(name)
        return None if app is None else app.application

    def add(self, application: Application) -> None:
        """Add an application; it resumes a state saved under its name.

        Raises:
            InvalidRequest: the name exists.
        """
        if application.name in self._apps:
            raise InvalidRequest(f"application {application.name!r} exists already")
        self._apps[application.name] = _App(application, self._store)

    def delete(self, name: str) -> None:
        """Delete an application and its policy's state."""
        self._of(name)
        del self._apps[name]
        self._store.delete(name)

    def link(self, name: str, models: Sequence[str]) -> None:
        """Link models to an application.

        Raises:
            InvalidSettings: one is linked already.
        """
        app = self._of(name)
        app.change(app.application.linked(*models))

    def unlink(self, name: str, models: Sequence[str]) -> None:
        """Unlink models from an application.

        Raises:
            InvalidSettings: one is not linked.
        """
        app = self._of(name)
        app.change(app.application.unlinked(*models))

    def state(self, name: str, user: str = EVERYBODY) -> Mapping[str, Any]:
        """Return policy state and decision counts, as plain data."""
        app = self._of(name)
        state = app.contexts.state(user)
        decisions = app.decisions
        return {
            "application": name,
            "policy": app.application.policy,
            "user": user,
            "weights": dict(app.selector.policy.weights(state)) if state.models else {},
            "state": state.as_json(),
            "decisions": {
                "waiting": len(decisions),
                "joined": decisions.joined,
                "unmatched": decisions.unmatched,
                "dropped": decisions.dropped,
            },
            "fresh_states": app.contexts.fresh,
        }

    def fresh_states(self) -> dict[str, int]:
        """Return, by application, how many queries found their state unreadable."""
        return {name: app.contexts.fresh for name, app in self._apps.items()}

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
        asker: QueryResponseHandler,
        *,
        version: str | None = None,
        user: str = EVERYBODY,
    ) -> RequestHandle:
        """Take a query; the asker is called once, after this method has returned.

        `version` names a version of the only linked model.

        Raises:
            InvalidRequest: no chosen model takes the input.
        """
        app = self._of(application)
        now_s = self._clock()
        asking = Asking(id=next(self._ids), user=user, input_hash=input_hash((question.key,)))
        state = app.contexts.for_query(user)
        pending = app.selector.begin(asking, state, draw=self._draw(), now_s=now_s)
        asked = _InflightQuery(app, pending, asker)
        slo_s = app.application.latency_slo_s
        wrong: InvalidRequest | None = None
        taken = 0
        is_under_way = False
        try:
            for model in pending.models:
                try:
                    target = self._engine.resolve(model, version)
                    query = question.query(target.signature, slo_s)
                    waiter = _ModelResponseHandler(asked, model, target, now_s)
                    asked.sent(model, target.submit(query, waiter, application))
                    taken += 1
                except InvalidRequest as error:
                    wrong = error
                    pending.failed(model)
                except ServingError as error:
                    log.debug("a model cannot be asked", extra={"model": model, "why": str(error)})
                    pending.failed(model)
            if wrong is not None and not taken:
                raise wrong
            asked.wait(asyncio.get_running_loop(), slo_s)
            is_under_way = True
        finally:
            if not is_under_way:  # an internal error: nobody waits for the models already asked
                asked.cancel()
        return asked

    def feedback(self, application: str, update: Feedback) -> bool:
        """Learn from a true label; False: no decision matches.

        Raises:
            InvalidRequest: the label does not fit the application.
            NotReady: the learned state is unreadable; the feedback may be repeated.
        """
        app = self._of(application)
        truth = model_output.true_label(app.application.task, update.label)
        if update.query_id is not None:
            decision = app.decisions.join(update.query_id)
        else:
            hashed = input_hash((update.input.key,))
            decision = app.decisions.join_input(update.user, hashed)
        if decision is None:
            return False
        try:
            app.contexts.observe(decision, truth)
        except NotReady:
            app.decisions.give_back(decision)
            raise
        return True

    def flush(self) -> None:
        """Wait until learned and deleted states are durable; thread-safe.

        Raises:
            NotReady: writing failed; it is retried.
        """
        self._store.flush()

    def close(self) -> None:
        """Make learned states durable."""
        self._store.close()

    def _of(self, name: str) -> _App:
        app = self._apps.get(name)
        if app is None:
            raise InvalidRequest(
                f"application {name!r} is not known (known: {', '.join(self._apps) or 'none'})"
            )
        return app
