"""Applications: queries that a policy sends to one or more models, and feedback that it learns from.

    ask:      policy chooses models -> each is resolved and asked -> answers combined -> asker
              (at the latest at the application's latency objective, with what has arrived)
    feedback: joins the decision that it speaks of -> policy learns -> state kept

The policies are pure (`serving.selection`); this file asks the models, keeps the time, and holds what was
decided until feedback comes. An answer of the single model of a `fixed` application is passed on as it is,
whatever it is, unless the application has a threshold of confidence; answers of several are read as classes
or numbers and combined.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from serving.engine import Target
from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    ServingError,
    UnknownModel,
)
from serving.replica import wire
from serving.selection import prediction
from serving.selection.answering import Pending, Selector
from serving.selection.application import Application
from serving.selection.contexts import Contexts
from serving.selection.decisions import DecisionLog, input_hash
from serving.selection.policy import Query as Asking
from serving.selection.state_store import EVERYBODY, StateStore
from serving.served import Query
from serving.values import Signature
from serving.waiter import Ticket

log = logging.getLogger(__name__)


class Question(Protocol):
    """One input, as a protocol's codec made it."""

    @property
    def key(self) -> bytes:
        """Bytes that are equal for equal inputs: what feedback joins by."""
        ...

    def query(self, signature: Signature, timeout_s: float | None = None) -> Query:
        """The query for a model; raises InvalidRequest where the model takes something else."""
        ...


class Feedback(Protocol):
    """What was right for an input."""

    @property
    def user(self) -> str:
        """Whose query it was."""
        ...

    @property
    def input(self) -> Question:
        """The input."""
        ...

    @property
    def label(self) -> float | str:
        """The truth."""
        ...

    @property
    def query_id(self) -> int | None:
        """The query, where the client kept its number."""
        ...


class Answered(NamedTuple):
    """What an asker gets."""

    query_id: int
    output: memoryview | str | float | None
    """A tensors frame, only borrowed for the call; or a label or number; None: no model answered."""
    is_default: bool = False
    explanation: str | None = None
    """Why the default output is to be given."""
    confidence: float | None = None
    """Of several models; None where one alone was asked."""
    is_suspicious: bool = False


class Asker(Protocol):
    """Whoever waits for the answer to one query."""

    def answered(self, result: Answered) -> None:
        """Called once, by the latency objective's end at the latest."""
        ...


class Resolves(Protocol):
    """What is needed of an engine."""

    def resolve(self, name: str, version: str | None) -> Target:
        """The model meant; raises UnknownModel or NotReady."""
        ...

    def versions(self, name: str) -> tuple[str, ...]:
        """All versions of a model; raises UnknownModel."""
        ...


class _App:
    """One application at work."""

    __slots__ = ("application", "contexts", "decisions", "selector")

    def __init__(self, application: Application, store: StateStore) -> None:
        self.application = application
        self.selector = Selector(application)
        self.contexts = Contexts(self.selector, store)
        self.decisions = DecisionLog()

    def change(self, application: Application) -> None:
        self.application = application
        self.selector = Selector(application)
        self.contexts.relink(self.selector)


class _Asked:
    """One query on its way: its tickets, its timer, and what its models say."""

    __slots__ = ("_app", "_asker", "_passes", "_pending", "_tickets", "_timer")

    def __init__(self, app: _App, pending: Pending, asker: Asker) -> None:
        self._app = app
        self._pending = pending
        self._asker: Asker | None = asker
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        application = app.application
        # With a threshold the answer has to be read: its confidence decides.
        self._passes = (
            application.policy == "fixed"
            and len(pending.models) == 1
            and not application.confidence_threshold
        )

    def sent(self, model: str, ticket: Ticket) -> None:
        """A model was asked."""
        self._tickets[model] = ticket

    def wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """All models were asked: answer at the objective's end, or at once where none will."""
        if self._pending.is_complete:
            loop.call_soon(self._finish)
        else:
            self._timer = loop.call_later(seconds, self._finish)

    def arrived(self, model: str, frame: memoryview) -> None:
        """A model has answered."""
        self._tickets.pop(model, None)
        if self._asker is None:
            return
        if self._passes:
            self._pass_on(model, frame)
            return
        try:
            (answer,) = prediction.answers(self._app.application.task, wire.decode_frame(frame))
        except (ServingError, ValueError) as error:
            log.warning("an answer cannot be combined", extra={"model": model, "why": str(error)})
            self.failed(model)
            return
        if self._pending.arrived(model, answer) or not self._tickets:
            self._finish()

    def failed(self, model: str) -> None:
        """A model will not answer."""
        self._tickets.pop(model, None)
        if self._pending.failed(model) or not self._tickets:
            self._finish()

    def late(self, model: str) -> None:
        """A model cannot answer in time: it is missing from the answer, which need not wait for it."""
        self._tickets.pop(model, None)
        if not self._tickets:
            self._finish()

    def cancel(self) -> None:
        """The asker went away."""
        self._asker = None
        self._end()

    def _pass_on(self, model: str, frame: memoryview) -> None:
        """The only model's answer, as it is; the log keeps it where it is one that can be learnt from."""
        try:
            (answer,) = prediction.answers(self._app.application.task, wire.decode_frame(frame))
        except (ServingError, ValueError):
            answer = None
        if answer is not None:
            self._pending.arrived(model, answer)
            self._app.decisions.put(self._pending.finish().decision)
        self._say(Answered(self._pending.query.id, frame))

    def _finish(self) -> None:
        if self._asker is None:
            return
        finished = self._pending.finish()
        self._app.decisions.put(finished.decision)
        result = finished.result
        several = len(self._pending.models) > 1
        self._say(
            Answered(
                query_id=result.query_id,
                output=None if result.is_default else result.output,
                is_default=result.is_default,
                explanation=result.explanation,
                confidence=result.confidence if several else None,
                is_suspicious=several and result.is_suspicious,
            )
        )

    def _say(self, answered: Answered) -> None:
        asker, self._asker = self._asker, None
        self._end()
        if asker is not None:
            asker.answered(answered)

    def _end(self) -> None:
        """What is late is not needed any more."""
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self._tickets.values():
            ticket.cancel()
        self._tickets.clear()


class _Model:
    """Waiter of one model's answer to one query."""

    __slots__ = ("_asked", "_model", "_started_s", "_target")

    def __init__(self, asked: _Asked, model: str, target: Target, started_s: float) -> None:
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
        engine: Resolves,
        store: StateStore,
        *,
        draw: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        first_id: int = 1,
    ) -> None:
        """No application yet.

        Args:
            engine: what answers for the models.
            store: where policies' states are kept.
            draw: a number in [0, 1) for each query.
            clock: seconds, never running back.
            first_id: number of the first query; higher than those of a process before, whose askers may
                still send feedback.
        """
        self._engine = engine
        self._store = store
        self._draw = draw
        self._clock = clock
        self._apps: dict[str, _App] = {}
        self._ids = itertools.count(first_id)

    # Applications and their links

    def all(self) -> tuple[Application, ...]:
        """Every application."""
        return tuple(app.application for app in self._apps.values())

    def application(self, name: str) -> Application | None:
        """The application of a name."""
        app = self._apps.get(name)
        return None if app is None else app.application

    def add(self, application: Application) -> None:
        """A new one; a state that was kept under its name is taken up.

        Raises:
            InvalidRequest: there is one of that name.
        """
        if application.name in self._apps:
            raise InvalidRequest(f"application {application.name!r} exists already")
        self._apps[application.name] = _App(application, self._store)

    def delete(self, name: str) -> None:
        """Its queries are not answered any more, and what its policy has learnt is forgotten."""
        self._of(name)
        del self._apps[name]
        self._store.delete(name)

    def link(self, name: str, models: Sequence[str]) -> None:
        """Queries go to these models, too.

        Raises:
            InvalidSettings: one is linked already.
        """
        app = self._of(name)
        app.change(app.application.linked(*models))

    def unlink(self, name: str, models: Sequence[str]) -> None:
        """Queries go to these models no more.

        Raises:
            InvalidSettings: one is not linked.
        """
        app = self._of(name)
        app.change(app.application.unlinked(*models))

    def state(self, name: str, user: str = EVERYBODY) -> Mapping[str, Any]:
        """What an application's policy has learnt, and how its decisions fared, as plain data."""
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
        """Queries by application that were decided without what was learnt, as it could not be read."""
        return {name: app.contexts.fresh for name, app in self._apps.items()}

    # Queries

    def model_versions(self, model: str) -> tuple[str, ...]:
        """The versions of a model that are served."""
        try:
            return self._engine.versions(model)
        except UnknownModel:
            return ()

    def ask(
        self,
        application: str,
        question: Question,
        asker: Asker,
        *,
        version: str | None = None,
        user: str = EVERYBODY,
    ) -> Ticket:
        """Take a query; the asker is called once, later, never before this returns.

        Args:
            application: one that exists.
            question: the input.
            asker: whoever waits.
            version: of the single linked model.
            user: whose query it is.

        Raises:
            InvalidRequest: none of the chosen models takes such an input.
        """
        app = self._of(application)
        now_s = self._clock()
        asking = Asking(id=next(self._ids), user=user, input_hash=input_hash((question.key,)))
        state = app.contexts.for_query(user)
        pending = app.selector.begin(asking, state, draw=self._draw(), now_s=now_s)
        asked = _Asked(app, pending, asker)
        slo_s = app.application.latency_slo_s
        wrong: InvalidRequest | None = None
        taken = 0
        is_under_way = False
        try:
            for model in pending.models:
                try:
                    target = self._engine.resolve(model, version)
                    query = question.query(target.signature, slo_s)
                    waiter = _Model(asked, model, target, now_s)
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
            if not is_under_way:  # a fault of ours: what other models were asked, nobody waits for
                asked.cancel()
        return asked

    def feedback(self, application: str, update: Feedback) -> bool:
        """Learn from what was right; False where no decision is known of which it speaks.

        Raises:
            InvalidRequest: the label is none of this application.
            NotReady: what was learnt so far cannot be read; the same feedback may be sent again.
        """
        app = self._of(application)
        truth = prediction.truth(app.application.task, update.label)
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
        """Return when what was learnt, or is to be forgotten, is durable; any thread may call it.

        Raises:
            NotReady: it cannot be written; it is kept and tried again.
        """
        self._store.flush()

    def close(self) -> None:
        """Make durable what was learnt."""
        self._store.close()

    def _of(self, name: str) -> _App:
        app = self._apps.get(name)
        if app is None:
            raise InvalidRequest(
                f"application {name!r} is not known (known: {', '.join(self._apps) or 'none'})"
            )
        return app
