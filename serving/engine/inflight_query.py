"""A query to an application while models answer it, at most until the latency SLO."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from serving import wire
from serving.engine.engine import DeploymentHandle
from serving.errors import CannotFinish, CannotLoad, DeadlineExceeded, ServingError
from serving.response_handler import RequestHandle
from serving.selection import model_output
from serving.selection.application import Application
from serving.selection.decisions import DecisionLog
from serving.selection.feedback_exchange import FeedbackExchange
from serving.selection.query_session import QueryResponse, QuerySession, Selector
from serving.selection.shared_decisions import SharedDecisions
from serving.selection.shared_states import SharedUserStates
from serving.selection.stores.state_store import StateStore
from serving.selection.user_states import UserStates

log = logging.getLogger(__name__)


Respond = Callable[[QueryResponse], None]
"""Callback for a query's response, called once, within the latency SLO."""


class ServedApplication:
    """An application with its users' states and its decisions."""

    __slots__ = ("_exchange", "application", "contexts", "decisions", "selector")

    def __init__(self, application: Application, store: StateStore | FeedbackExchange) -> None:
        self.application = application
        self.selector = Selector(application)
        self.contexts: UserStates | SharedUserStates
        self.decisions: DecisionLog
        self._exchange = store if isinstance(store, FeedbackExchange) else None
        if isinstance(store, FeedbackExchange):
            self.contexts = SharedUserStates(self.selector, store)
            self.decisions = SharedDecisions(application.name, store)
            store.attach(application.name, self.contexts, self.decisions)
            # Whoever comes to know the models says so: the last to know has the newest record.
            store.relink(application.name, application.models)
        else:
            self.contexts = UserStates(self.selector, store)
            self.decisions = DecisionLog()

    def change(self, application: Application) -> None:
        """Adopt an application whose links have changed."""
        self.application = application
        self.selector = Selector(application)
        self.contexts.relink(self.selector)
        if self._exchange is not None:
            self._exchange.relink(application.name, application.models)


class InflightQuery:
    """A query in flight."""

    __slots__ = ("_app", "_passes", "_pending", "_respond", "_tickets", "_timer")

    def __init__(self, app: ServedApplication, pending: QuerySession, respond: Respond) -> None:
        self._app = app
        self._pending = pending
        self._respond: Respond | None = respond
        self._tickets: dict[str, RequestHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        application = app.application
        # A threshold needs the output's confidence.
        self._passes = (
            application.policy == "fixed"
            and len(pending.models) == 1
            and not application.confidence_threshold
        )

    def add_ticket(self, model: str, ticket: RequestHandle) -> None:
        """Add the handle of the request to a model."""
        self._tickets[model] = ticket

    def wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Start the SLO timer, or respond at once if no model can."""
        if self._pending.is_complete:
            loop.call_soon(self._finish)
        else:
            self._timer = loop.call_later(seconds, self._finish)

    def add_response(self, model: str, frame: memoryview) -> None:
        """Add a model's response."""
        self._tickets.pop(model, None)
        if self._respond is None:
            return
        passed_on = QueryResponse(self._pending.query.id, frame)
        try:
            (answer,) = model_output.model_outputs(
                self._app.application.task, wire.decode_frame(frame)
            )
        except (ServingError, ValueError) as error:
            if self._passes:
                self._end_with(passed_on)
            else:
                facts = {"model": model, "why": str(error)}
                log.warning("a response cannot be combined", extra=facts)
                self.drop_model(model)
            return
        is_complete = self._pending.record_output(model, answer)
        if self._passes:
            self._app.decisions.put(self._pending.finish().decision)
            self._end_with(passed_on)
        elif is_complete or not self._tickets:
            self._finish()

    def drop_model(self, model: str) -> None:
        """Drop a failed model."""
        self._tickets.pop(model, None)
        if self._pending.record_failure(model) or not self._tickets:
            self._finish()

    def late(self, model: str) -> None:
        """Drop a model that is too late; its output counts as missing."""
        self._tickets.pop(model, None)
        if not self._tickets:
            self._finish()

    def cancel(self) -> None:
        """Cancel the query, since its client is gone."""
        self._respond = None
        self._end()

    def _finish(self) -> None:
        if self._respond is None:
            return
        finished = self._pending.finish()
        self._app.decisions.put(finished.decision)
        result = finished.result
        several = len(self._pending.models) > 1
        self._end_with(
            result._replace(
                output=None if result.is_default else result.output,
                confidence=result.confidence if several else None,
                is_suspicious=several and result.is_suspicious,
            )
        )

    def _end_with(self, answered: QueryResponse) -> None:
        respond, self._respond = self._respond, None
        self._end()
        if respond is not None:
            respond(answered)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()


class ModelResponseHandler:
    """Response handler for one model's part in a query."""

    __slots__ = ("_asked", "_model", "_started_s", "_target")

    def __init__(
        self, asked: InflightQuery, model: str, target: DeploymentHandle, started_s: float
    ) -> None:
        self._asked = asked
        self._model = model
        self._target = target
        self._started_s = started_s

    def on_result(self, frame: memoryview) -> None:
        """Receive the model's response."""
        self._target.count_response(200, time.monotonic() - self._started_s)
        self._asked.add_response(self._model, frame)

    def on_error(self, error: ServingError) -> None:
        """Receive the model's error; if it would be too late, its output counts as missing."""
        self._target.count_response(error.status, time.monotonic() - self._started_s)
        if isinstance(error, DeadlineExceeded | CannotFinish | CannotLoad):
            self._asked.late(self._model)
        else:
            self._asked.drop_model(self._model)
