"""Applications over a real gateway with small replicas that answer what they are asked."""

import asyncio
import contextlib
import functools
import logging
import pathlib
import random
import tempfile
import time

import numpy as np
import pytest

from serving import wire
from serving.api.clipper.inputs import ApplicationInput
from serving.engine.applications import Applications
from serving.errors import InvalidRequest, NotReady
from serving.model_spec import ModelSpec
from serving.selection.application import Application
from serving.selection.feedback_exchange import FeedbackExchange
from serving.selection.query_session import ALL_FAILED, NO_MODELS, TOO_LATE
from serving.selection.stores.redis_shared import RedisShared
from serving.selection.stores.state_store import MemoryStore
from tests.fakes.redis_server import running_redis
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway
from tests.fakes.servables import FunctionHome, signature


class Waiting:
    """An asker that keeps what it was told."""

    def __init__(self):
        self.results = []
        self.done = asyncio.Event()

    def on_response(self, result):
        if isinstance(result.output, memoryview):
            (tensor,) = wire.decode_frame(result.output)
            result = result._replace(output=bytes(tensor.data))
        self.results.append(result)
        self.done.set()


def number(value):
    return ApplicationInput("integers", [value])


@contextlib.contextmanager
def hub(models=("echo",), home=None, store=None, draw=random.random, **values):
    """A gateway, and applications over it; models that answer with their input."""
    with gateway(values, home) as running:
        for name in models:
            if name != "echo":
                card = ModelSpec(name=name, version="1", kind="echo", path=None)
                running.call(running.engine.deploy(card))
        store = store or MemoryStore()
        running.hub = running.do(lambda: Applications(running.engine, store, draw=draw))
        running.store = store
        yield running


def add(running, models=("echo",), **more):
    """Where a test is not about the objective, it is one that an answer does not miss on a busy machine."""
    application = Application(
        **{"name": "app", "latency_slo_s": 5.0, **more},
        input_type="integers",
        default_output="-1",
        models=tuple(models),
    )
    running.do(running.hub.add, application)


def ask(running, value, *, application="app", wait_s=9.0, **more):
    async def work():
        asker = Waiting()
        running.hub.ask(application, number(value), asker.on_response, **more)
        assert asker.results == [], "never before it returns"
        await asyncio.wait_for(asker.done.wait(), wait_s)
        await asyncio.sleep(0.05)
        (result,) = asker.results
        return result

    return running.call(work())


def learn(running, value, label, *, user="0", query_id=None):
    """Whether feedback to an input joins a decision."""
    key = number(value).key
    return running.do(
        functools.partial(
            running.hub.feedback, "app", label, user=user, input_key=key, query_id=query_id
        )
    )


def test_the_answer_of_a_single_model_is_passed_on_as_it_is():
    """A frame, no confidence; feedback joins the decision by its number or by user and input, once."""
    with hub() as running:
        add(running)
        result = ask(running, 7, user="0")
        assert (result.output, result.is_default, result.confidence) == (b"\7", False, None)
        assert learn(running, 7, 7) is True
        assert learn(running, 7, 7) is False
        result = ask(running, 8)
        assert learn(running, 0, 8, query_id=result.query_id) is True


def test_without_models_the_default_is_given_at_once():
    """With Clipper's words."""
    with hub() as running:
        add(running, models=())
        result = ask(running, 7)
        assert (result.output, result.is_default, result.explanation) == (None, True, NO_MODELS)
        running.do(running.hub.link, "app", ["echo"])
        assert ask(running, 7).output == b"\7"
        running.do(running.hub.unlink, "app", ["echo"])
        assert ask(running, 7).explanation == NO_MODELS


def test_a_late_model_is_answered_for_at_the_objective():
    """The default in time, and the late request leaves the queue."""
    home = FakeHome()
    with hub(home=home, **{"batching.max_size": 1}) as running:
        add(running, latency_slo_s=0.1)
        home.hold.set()
        result = ask(running, 7)
        assert (result.is_default, result.explanation) == (True, TOO_LATE)
        assert running.do(lambda: running.engine.inflight_count) == 0
        home.hold.clear()
        home.release.set()
        add(running, name="patient")
        assert ask(running, 7, application="patient").output == b"\7"


def test_several_models_agree_with_confidence():
    """exp4 asks all; one that is unknown lowers the confidence and is no error."""
    with hub(models=("echo", "two")) as running:
        add(running, models=("echo", "two"), policy="exp4")
        result = ask(running, 3)
        assert (result.output, result.confidence, result.is_suspicious) == ("3", 1.0, False)
        running.do(running.hub.link, "app", ["missing"])
        result = ask(running, 3)
        assert result.output == "3"
        assert result.confidence < 1.0
        state = running.do(running.hub.state, "app")
        assert state["weights"].keys() == {"echo", "two", "missing"}


def test_feedback_moves_the_weights_and_is_kept():
    """A model that never answers loses its weight; the state is stored under the application."""
    with hub(draw=random.Random(1).random) as running:
        add(running, models=("echo", "gone"), policy="exp3")
        for value in range(40):
            result = ask(running, value % 8)
            assert learn(running, value % 8, value % 8, query_id=result.query_id)
        weights = running.do(running.hub.state, "app")["weights"]
        assert weights["echo"] > 0.7
        assert running.do(running.store.load, "app", "") is not None
        running.do(running.hub.delete, "app")
        assert running.do(running.store.load, "app", "") is None


def test_models_that_all_fail_give_the_default():
    """At once, not at the objective."""
    with hub() as running:
        add(running, models=("gone",), latency_slo_s=30.0)
        assert ask(running, 1).explanation == ALL_FAILED


def test_an_input_that_no_model_takes_is_refused():
    """The client's fault, told as such; nothing waits."""
    with hub() as running:
        add(running)
        with pytest.raises(InvalidRequest, match="range from"):
            ask(running, 300)
        with pytest.raises(InvalidRequest, match="is not known"):
            running.do(running.hub.delete, "other")
        with pytest.raises(InvalidRequest, match="already exists"):
            add(running)


def test_a_fault_takes_back_what_was_asked_before_it():
    """One model was asked, then the input's code breaks: nothing waits any more, and nobody is called."""
    home = FakeHome()
    home.hold.set()

    class Broken(ApplicationInput):
        asked = 0

        def query(self, signature, timeout_s=None):
            Broken.asked += 1
            if Broken.asked == 2:
                raise ZeroDivisionError
            return super().query(signature, timeout_s)

    with hub(models=("echo", "two"), home=home) as running:
        add(running, models=("echo", "two"), policy="exp4", latency_slo_s=0.05)
        asker = Waiting()
        with pytest.raises(ZeroDivisionError):
            running.do(running.hub.ask, "app", Broken("integers", [1]), asker.on_response)
        assert running.do(lambda: running.engine.inflight_count) == 0
        time.sleep(0.1)
        assert asker.results == []
        home.hold.clear()
        home.release.set()


def test_an_asker_that_leaves_is_not_called():
    """Its work is taken out of the queue."""
    home = FakeHome()
    with hub(home=home) as running:
        add(running, latency_slo_s=0.2)
        home.hold.set()

        async def leave():
            asker = Waiting()
            running.hub.ask("app", number(1), asker.on_response).cancel()
            await asyncio.sleep(0.4)
            return asker.results

        assert running.call(leave()) == []
        assert running.do(lambda: running.engine.inflight_count) == 0
        home.release.set()


def test_a_threshold_holds_for_the_only_model_of_a_fixed_application():
    """Below it the default is given, marked."""
    home = FunctionHome()
    with hub(home=home) as running:
        home.deploy(
            running, "unsure", "1",
            signature({"x": ("FP32", (-1, 1))}, {"scores": ("FP32", (-1, 2))}),
            lambda arrays: {"scores": np.hstack([arrays["x"] / 100, 1 - arrays["x"] / 100])},
        )  # fmt: skip
        add(running, models=("unsure",), confidence_threshold=0.9)
        doubtful, sure = ask(running, 60), ask(running, 95)
        assert (doubtful.output, doubtful.is_default) == (None, True)
        assert "below the application's threshold 0.9" in doubtful.explanation
        assert (sure.output, sure.is_default) == ("0", False)


def test_feedback_with_an_id_finds_what_was_asked_without_one():
    """Clipper's clients name a user in feedback alone."""
    with hub() as running:
        add(running, contexts="user")
        ask(running, 4)
        assert learn(running, 4, 4, user="anna")


def test_feedback_to_a_query_teaches_once_and_is_counted_once():
    """Sent twice it does not join another query of the same input."""
    with hub() as running:
        add(running)
        results = [ask(running, 4), ask(running, 4)]
        taken = [learn(running, 4, 4, query_id=results[1].query_id) for _ in range(2)]
        assert taken == [True, False]
        decisions = running.do(running.hub.state, "app")["decisions"]
        assert decisions == {"waiting": 1, "joined": 1, "unmatched": 1, "dropped": 0}


def test_contexts_of_users_are_kept_apart():
    """There feedback of one user does not find another's query."""
    with hub() as running:
        add(running, contexts="user")
        ask(running, 4, user="ben")
        assert not learn(running, 4, 4, user="anna")
        assert learn(running, 4, 4, user="ben")


def longest_pause_s(running, work):
    """Run `work`; returns what it gives, and the longest time in which the gateway's loop did nothing else."""

    async def watch():
        pauses, last_s = [0.0], time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            pauses.append(time.monotonic() - last_s)
            last_s = time.monotonic()
            if stop:
                return max(pauses)

    stop = []
    watching = asyncio.run_coroutine_threadsafe(watch(), running.loop)
    try:
        result = work()
    finally:
        stop.append(True)
    return result, watching.result(5.0)


def test_states_out_of_reach_hold_up_no_query(caplog):
    """A Redis server killed between queries: all are answered, counted and told once; what was learnt comes back."""
    caplog.set_level(logging.INFO)
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.ExitStack() as again,
        running_redis(pathlib.Path(name)) as (process, url),
        hub(store=FeedbackExchange(RedisShared(url, patience_s=2.0))) as running,
    ):
        add(running, contexts="user", policy="exp3")

        def feedback(user):
            result = ask(running, 7, user=user)
            return lambda: learn(running, 7, 7, user=user, query_id=result.query_id)

        assert feedback("anna")()
        running.call(running.store.sync(save=True))
        process.kill()
        process.wait(10)
        assert feedback("anna")()  # in memory
        users = [f"user {count}" for count in range(5)]
        taught, pause_s = longest_pause_s(running, lambda: [feedback(user) for user in users])
        assert pause_s < 1.0, "waiting for the server takes 2.0 s"
        with pytest.raises(NotReady, match="does not answer"):
            taught[0]()
        assert running.do(running.hub.state, "app")["decisions"]["joined"] == 2
        assert running.do(running.hub.state_misses) == {"app": 5}
        again.enter_context(running_redis(pathlib.Path(name)))
        end_s = time.monotonic() + 10.0
        while True:
            try:
                assert taught[0]()  # the same feedback, sent again
                break
            except NotReady:
                assert time.monotonic() < end_s
                time.sleep(0.05)
        running.call(running.store.sync(save=True))
        for user in ("", "anna", "user 0"):
            assert running.do(running.store.load_now, "app", user) is not None
        assert running.do(running.hub.state_misses) == {"app": 5}
        running.do(running.hub.close)
    told = [record.message for record in caplog.records]
    assert told.count("states cannot be read; queries are decided without learned states") == 1
    assert told.count("states can be read again") == 1
