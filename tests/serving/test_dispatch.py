"""The dispatcher alone: messages of a replica are given to it as bytes, and its clock is a variable."""

import asyncio
import gc
import json
import logging
import math
import time

import pytest

from serving import wire
from serving.api.open_inference.request_decoder import RequestDecoder
from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.model_load import LoadSpec
from serving.errors import InferenceFailed, Overloaded, RequestTooLarge, SplitTooLarge, TooManyItems
from serving.model_spec import ModelSpec
from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.interface import (
    Action,
    ActionResult,
    ActionType,
    ModelUp,
    Plan,
    RejectionReason,
    WorkerDraining,
)
from serving.settings import ServingSettings
from serving.values import ModelId, Tensor
from tests.fakes.replicas import SIGNATURE

CARD = ModelSpec(name="echo", version="1", kind="echo", path=None)
BODY = b'{"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [7]}]}'


def frame_of(value):
    """An answer of one item."""
    return wire.encode_descriptor([Tensor("data", "UINT8", (1, 1), value)]) + value


class Waiting:
    """A waiter that keeps how it was completed."""

    def __init__(self):
        self.answers = []
        self.errors = []

    def on_result(self, frame):
        self.answers.append(bytes(frame))

    def on_error(self, error):
        self.errors.append(error)


def connected(dispatcher, worker=1, *, written=None, on_loaded=lambda *_: None, **handlers):
    """A replica that is up; what is written to it is noted, if wanted."""
    replica = ReplicaConnection(dispatcher, worker, on_loaded=on_loaded, **handlers)
    if written is not None:
        replica.connection_made(Line(written))
    dispatcher.worker_up(replica)
    return replica


class Bench:
    """A dispatcher with workers that have loaded the model; their sockets lead nowhere."""

    def __init__(self, *, workers=1, **knobs):
        self.now_s = 100.0
        self.done = []
        self.ended = []
        values = {name.replace("__", "."): value for name, value in knobs.items()}
        settings = ServingSettings().with_changes(values)
        self.dispatcher = Dispatcher(
            AdaptiveScheduler(CARD.id, settings),
            on_batch=self.done.append,
            on_action=lambda *ended: self.ended.append(ended),
            clock=lambda: self.now_s,
        )
        self.query = RequestDecoder("echo", SIGNATURE).query(BODY, None)
        self.connection_lost = []
        self.replicas = {}
        self.actions = 0
        for worker in range(1, workers + 1):
            self.up(worker)

    def up(self, worker):
        self.replicas[worker] = connected(
            self.dispatcher,
            worker,
            wanted=lambda _: LoadSpec(CARD, 1),
            on_lost=self.connection_lost.append,
        )
        self.actions += 1
        detail = {"signature": SIGNATURE.as_json(), "load_s": 0.0}
        message = wire.encode_loaded(self.actions, wire.ActionStatus.OK, detail)
        self.hear(wire.MessageType.LOADED, message, worker)

    def hear(self, kind, message, worker=1):
        body = memoryview(message)[wire.HEAD.size :]
        self.dispatcher.on_message(self.replicas[worker], kind, body)

    def submit(self):
        waiter = Waiting()
        deadline_s = self.now_s + 30
        self.dispatcher.submit(self.query, waiter, CARD.id, deadline_s, self.now_s)
        self.dispatcher._pump()
        return waiter

    def result(self, action, worker=1, value=b"\7", status=0, count=1):
        frame = frame_of(value)
        times = wire.ReplicaTimes(0, 0, 0, 0)
        head = wire.result_head(action, status, times, [(len(frame), status)] * count)
        self.hear(wire.MessageType.RESULT, head + count * frame, worker)


@pytest.fixture(name="bench")
async def _bench():
    bench = Bench(batching__max_size=1)
    yield bench
    bench.dispatcher.close(CARD.label)


async def test_a_buffered_batch_is_held_since_the_result_before_it(bench):
    """A batch that waits behind another has not hung: its time begins when the worker gets to it."""
    assert bench.replicas[1].oldest_sent_s is None
    bench.submit()
    bench.submit()
    assert bench.replicas[1].oldest_sent_s == 100.0
    bench.now_s = 120.0
    bench.result(2)
    assert bench.replicas[1].oldest_sent_s == 120.0
    bench.result(3)
    assert bench.replicas[1].oldest_sent_s is None


async def test_an_answer_that_leaves_after_its_deadline_is_counted(bench):
    """Of a batch those that are late, not those that were in time."""
    for now_s in (129.9, 130.1):
        waiter = bench.submit()
        bench.now_s, started_s = now_s, bench.now_s
        bench.result(len(bench.ended) + 1)
        assert (len(waiter.answers), bench.done[-1].late) == (1, int(now_s > started_s + 30))
        bench.now_s = 100.0


async def test_refusals_are_counted_by_their_reason(bench):
    """Of the model whose request it was; nothing is counted for others."""
    waiters = [bench.submit() for _ in range(3)]
    bench.now_s = 131.0
    bench.dispatcher._pump()
    assert all(waiter.errors for waiter in waiters)
    counts = bench.dispatcher.refusals_of(CARD.id)
    assert sum(counts.values()) == 3
    assert set(counts) <= {
        RejectionReason.DEADLINE_IN_QUEUE.value,
        RejectionReason.DEADLINE_IN_REPLICA.value,
        RejectionReason.CANNOT_FINISH.value,
    }
    assert bench.dispatcher.refusals_of(ModelId("other", "1")) == {}


async def test_nothing_stays_of_models_that_have_gone(bench):
    """Also of those whose requests ended later than they."""
    dispatcher, loads = bench.dispatcher, []
    for number in range(20):
        model = CARD.id._replace(version=f"v{number}")
        loads.append(Waiting())
        dispatcher.submit(bench.query, loads[-1], model, bench.now_s + 30, bench.now_s)
        dispatcher.model_down(model)
        bench.now_s += 31
        dispatcher._pump()
    dispatcher.model_up(ModelUp(CARD.id, 1, 0.0, {1: 0.0}))
    assert all(waiter.errors for waiter in loads)
    assert set(dispatcher._unfinished) | set(dispatcher._refusals) <= {CARD.id}


async def test_a_model_keeps_its_number_while_a_replica_may_hold_it():
    """Then it is forgotten, and its number is not used again: a replica may confuse no two models."""
    scheduler, numbers = Planned(), []
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    replica = connected(dispatcher, written=[], wanted=lambda _: None, on_lost=lambda _: None)
    for id_ in range(1, 4):
        dispatcher.model_up(ModelUp(CARD.id, 1, 0.0, {1: 0.0}))
        assert not dispatcher.has_numbered(CARD.id)
        numbers.append(dispatcher.number_of(CARD.id))
        replica.loaded.add(CARD.id)
        scheduler.actions = [Action(id_, ActionType.UNLOAD, 1, CARD.id, [], 0.0, math.inf, 0.0)]
        dispatcher.model_down(CARD.id)
        assert dispatcher.has_numbered(CARD.id)
        told = wire.encode_unloaded(id_, wire.ActionStatus.OK, {})
        body = memoryview(told)[wire.HEAD.size :]
        dispatcher.on_message(replica, wire.MessageType.UNLOADED, body)
    assert len(set(numbers)) == 3
    dispatcher.close(CARD.label)


async def test_every_action_ends_once(bench):
    """It is told whether it was done, not begun, or lost with its worker; what is in memory is known."""
    assert bench.dispatcher.loaded_models() == {1: {CARD.id}}
    for _ in range(3):
        bench.submit()
    bench.result(2)
    bench.result(3, status=wire.ActionStatus.TOO_LATE)
    bench.dispatcher.workers_down([1], "oom")
    outcomes = [ended[:2] for ended in bench.ended]
    assert outcomes[:3] == [("load", "ok"), ("infer", "ok"), ("infer", "too_late")]
    assert set(outcomes[3:]) == {("infer", "lost")}
    assert [took_s is None for *_, took_s in bench.ended[:3]] == [False, False, True]
    assert bench.dispatcher.loaded_models() == {}


async def test_a_batch_of_an_idle_worker_is_held_since_it_was_sent(bench):
    """A result of long ago does not make a new batch older than it is."""
    bench.submit()
    bench.result(2)
    bench.now_s = 150.0
    bench.submit()
    assert bench.replicas[1].oldest_sent_s == 150.0


async def test_requests_of_a_model_are_counted_however_they_end():
    """Answered, failed, cancelled, refused, or left behind."""
    bench = Bench(batching__max_size=1)
    dispatcher = bench.dispatcher
    waiters = [bench.submit() for _ in range(4)]
    cancelled = dispatcher.submit(bench.query, Waiting(), CARD.id, bench.now_s + 30, bench.now_s)
    assert dispatcher.inflight_count_of(CARD.id) == len(dispatcher._jobs) == 5
    bench.result(2)
    bench.result(3, status=wire.ActionStatus.INVALID_INPUT)
    cancelled.cancel()
    cancelled.cancel()
    assert dispatcher.inflight_count_of(CARD.id) == len(dispatcher._jobs) == 2
    bench.now_s += 31
    dispatcher._pump()
    assert dispatcher.inflight_count_of(CARD.id) == len(dispatcher._jobs) == 0
    assert [len(waiter.errors) for waiter in waiters] == [0, 1, 1, 1]
    bench.submit()
    dispatcher.close(CARD.label)
    assert dispatcher.inflight_count_of(CARD.id) == len(dispatcher._jobs) == 0
    assert dispatcher.inflight_count_of(CARD.id._replace(version="2")) == 0


async def test_a_broken_connection_gets_nothing_new(bench):
    """Between the loss of a socket and the news of the replica's end, its work goes to others."""
    bench.up(2)
    bench.dispatcher.connection_lost(bench.replicas[2], None)
    assert bench.connection_lost == [None]
    for _ in range(4):
        bench.submit()
    assert (len(bench.replicas[1].sent), len(bench.replicas[2].sent)) == (2, 0)
    assert bench.dispatcher.waiting_of(CARD.id) == 2


async def test_a_request_loses_no_life_to_a_replica_that_never_had_it(bench):
    """Two replicas die at once: what the first held waits for a third, and is answered."""
    bench.up(2)
    waiter = bench.submit()
    bench.dispatcher.connection_lost(bench.replicas[1], None)
    bench.dispatcher.connection_lost(bench.replicas[2], None)
    bench.dispatcher.workers_down([1], "oom")
    bench.dispatcher.workers_down([2], "oom")
    assert waiter.errors == []
    bench.actions = 3
    bench.up(3)
    bench.result(5, worker=3)
    assert len(waiter.answers) == 1


async def test_a_batch_that_was_not_started_waits_again_once(bench):
    """The replica says so; nobody has an answer yet, and the second time the request is refused."""
    waiter = bench.submit()
    bench.result(2, status=wire.ActionStatus.TOO_LATE)
    assert (waiter.answers, waiter.errors) == ([], [])
    bench.result(3)
    assert len(waiter.answers) == 1
    waiter = bench.submit()
    bench.result(4, status=wire.ActionStatus.TOO_LATE)
    bench.result(5, status=wire.ActionStatus.TOO_LATE)
    assert [str(error) for error in waiter.errors] == [
        "two replicas did not start the batch that held the request"
    ]


class Large:
    """A request that says it is large."""

    frame = (b"",)
    encoding = 0
    items = 1

    def __init__(self, mebibytes):
        self.frame_bytes = mebibytes * 2**20


@pytest.fixture(name="pair")
async def _pair():
    pair = Bench(batching__max_size=2)
    yield pair
    pair.dispatcher.close(CARD.label)


def submitted(bench, request, limit_s=30.0):
    waiter = Waiting()
    bench.dispatcher.submit(request, waiter, CARD.id, bench.now_s + limit_s, bench.now_s)
    return waiter


def may_share(bench, seconds):
    """Batches of two run for long enough for large ones to share one."""
    bench.dispatcher._scheduler.profile.seed({2: seconds})


async def test_requests_too_large_for_one_message_are_sent_one_by_one(pair):
    """Together they would end the replica, which takes messages up to 1 GiB; a refusal beside them is heard."""
    may_share(pair, 2.0)
    dispatcher = pair.dispatcher
    waiters = [submitted(pair, Large(600), limit_s) for limit_s in (30.0, 30.0, 0.0)]
    dispatcher._pump()
    assert [len(waiter.errors) for waiter in waiters] == [0, 0, 1]
    dispatcher._pump()
    assert len(pair.replicas[1].sent) == 2
    pair.result(3)
    pair.result(4)
    assert [len(waiter.answers) for waiter in waiters] == [1, 1, 0]


@pytest.mark.parametrize("mebibytes", [1025, 5 * 1024])
async def test_a_request_too_large_for_a_message_is_refused_at_once(pair, mebibytes):
    """No replica would take it; it is the client's to make it smaller, and others are not touched."""
    may_share(pair, 16.0)
    large, small = submitted(pair, Large(mebibytes)), submitted(pair, Large(1))
    for _ in range(3):  # together, the large one alone, the small one
        pair.dispatcher._pump()
    assert [type(error) for error in large.errors] == [RequestTooLarge]
    assert (len(pair.replicas[1].sent), len(pair.dispatcher._jobs)) == (1, 1)
    pair.result(4)
    assert (len(small.answers), len(large.answers)) == (1, 0)


async def test_requests_too_large_for_a_message_do_not_flood_the_log(pair, caplog):
    """One line a second, with the number of those that were left out."""
    caplog.set_level(logging.INFO, "serving.deployment.dispatch")
    for pause_s in (0.0, *[0.01] * 20, 1.0):
        pair.now_s += pause_s
        waiter = submitted(pair, Large(1025))
        pair.dispatcher._pump()
        assert len(waiter.errors) == 1
    told = [one.untold for one in caplog.records if "too large" in one.message]
    assert told == [0, 20]


async def test_answers_too_large_for_one_message_are_asked_for_one_by_one(pair):
    """The replica says so; one whose answer is too large alone is told, and the other one is answered."""
    waiters = [submitted(pair, pair.query) for _ in range(2)]
    pair.dispatcher._pump()
    text = b"too large"
    head = wire.result_head(
        2, wire.ActionStatus.TOO_LARGE, wire.ReplicaTimes(0, 0, 0, 0), [(len(text), 5)] * 2
    )
    pair.hear(wire.MessageType.RESULT, head + text + text)
    assert [(waiter.answers, waiter.errors) for waiter in waiters] == [([], [])] * 2
    pair.result(3, status=wire.ActionStatus.TOO_LARGE)
    assert [type(error) for error in waiters[0].errors] == [InferenceFailed]
    pair.result(4)
    assert len(waiters[1].answers) == 1


def rows(items, *, as_json=False, mebibytes=0):
    """A request of so many rows."""
    if as_json:
        data = json.dumps([1] * items).encode()
        data = data.replace(b"[", b"[" + b" " * (mebibytes * 2**20 + 2**16))
        head = b'{"inputs": [{"name": "data", "shape": [%d, 1], "datatype": "UINT8", "data": %b}]}'
        return RequestDecoder("echo", SIGNATURE).query(head % (items, data), None)
    item = {"name": "data", "shape": [items, 1], "datatype": "UINT8"}
    item["parameters"] = {"binary_data_size": items}
    head = json.dumps({"inputs": [item]}).encode()
    return RequestDecoder("echo", SIGNATURE).query(head + bytes(items), len(head))


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_split_request_is_answered_by_its_parts(as_json):
    """Each part is sent alone, or the whole with the range; the answers are joined in their order."""
    bench = Bench(batching__max_size=1)
    waiter = submitted(bench, rows(3, as_json=as_json))
    for action in (2, 3, 4):
        bench.dispatcher._pump()
        bench.result(action, value=bytes([action]))
    (answer,) = waiter.answers
    (tensor,) = wire.decode_frame(memoryview(answer))
    assert (tensor.shape, bytes(tensor.data)) == ((3, 1), b"\2\3\4")
    bench.dispatcher.close(CARD.label)


@pytest.mark.parametrize("fit", [3, 2])
async def test_answers_of_parts_are_bounded_together(fit):
    """As one alone is; what is left of a request that fails so is not run, and others are answered."""
    bench = Bench(batching__max_size=1)
    answer_bytes = len(frame_of(b"\7"))
    bench.replicas[1].max_message_bytes = fit * answer_bytes
    waiter = submitted(bench, rows(3))
    for action in (2, 3, 4):
        bench.dispatcher._pump()
        assert len(bench.replicas[1].sent)
        bench.result(action)
    if fit == 3:
        assert (len(waiter.answers), waiter.errors) == (1, [])
    else:
        assert [type(error) for error in waiter.errors] == [InferenceFailed]
        assert "too large for one message" in str(waiter.errors[0])
    assert (len(bench.dispatcher._jobs), bench.dispatcher.waiting_of(CARD.id)) == (0, 0)
    small = submitted(bench, rows(1))
    bench.dispatcher._pump()
    bench.result(5)
    assert len(small.answers) == 1
    bench.dispatcher.close(CARD.label)


async def test_a_request_that_would_be_sent_too_often_is_refused():
    """JSON goes whole for each of its parts: 30 MiB nine times are more than any request may be."""
    bench = Bench(batching__max_size=1)
    waiter = submitted(bench, rows(20, as_json=True, mebibytes=30))
    small = submitted(bench, rows(2), limit_s=60.0)
    for action in range(2, 40):
        bench.dispatcher._pump()
        if waiter.errors:
            break
        bench.result(action)
    assert [type(error) for error in waiter.errors] == [SplitTooLarge]
    assert waiter.errors[0].status == 413
    assert action <= 11
    for more in range(action - 1, action + 4):
        bench.dispatcher._pump()
        bench.result(more)
    assert len(small.answers) == 1
    bench.dispatcher.close(CARD.label)


async def test_more_items_than_may_wait_are_told_so():
    """Not that the queue is full: to come again is of no use."""
    bench = Bench(workers=0, scheduling__queue_capacity=4)
    waiters = [submitted(bench, rows(items)) for items in (5, 4, 1)]
    bench.dispatcher._pump()
    found = [[type(error) for error in waiter.errors] for waiter in waiters]
    assert found == [[TooManyItems], [], [Overloaded]]
    assert "5" not in str(waiters[0].errors[0])
    assert "4 (scheduling.queue_capacity)" in str(waiters[0].errors[0])
    bench.dispatcher.close(CARD.label)


async def test_parts_are_cut_and_joined_in_linear_time():
    """Twice the items take about twice the time: no part looks at the whole, nor an answer at those before it."""
    took_s = []
    for items in (4_000, 8_000, 4_000, 8_000):
        bench = Bench(batching__max_size=1, scheduling__queue_capacity=10_000)
        waiter = submitted(bench, rows(items))
        gc.collect()
        began_s = time.process_time()
        for action in range(2, items + 2):
            bench.dispatcher._pump()
            bench.result(action)
        took_s.append(time.process_time() - began_s)
        assert len(waiter.answers) == 1
        bench.dispatcher.close(CARD.label)
    assert min(took_s[1::2]) < 3 * min(took_s[::2])


class Broken(Waiting):
    """A waiter that fails whatever it is told."""

    def on_result(self, frame):
        raise RuntimeError("no connection")

    def on_error(self, error):
        super().on_error(error)
        raise RuntimeError("no connection")


@pytest.mark.parametrize("how", ["answered", "failed", "expired", "too large", "closed"])
async def test_a_waiter_that_fails_keeps_nobody_else_waiting(how):
    """However requests end, each of the others ends as well, and the next one is answered."""
    bench = Bench(batching__max_size=4)
    dispatcher = bench.dispatcher
    request = Large(1025) if how == "too large" else bench.query
    waiters = [Broken() if number % 2 else Waiting() for number in range(4)]
    for waiter in waiters:
        dispatcher.submit(request, waiter, CARD.id, bench.now_s + 30, bench.now_s)
    dispatcher._pump()
    if how in {"answered", "failed"}:
        bench.result(2, status=int(how == "failed"), count=4)
    elif how == "expired":
        bench.now_s += 31
        dispatcher._pump()
    elif how == "too large":
        for _ in range(8):
            dispatcher._pump()
    else:
        dispatcher.close(CARD.label)
    assert [len(one.answers) + len(one.errors) for one in waiters] == [1] * 4
    assert len(dispatcher._jobs) == 0
    dispatcher.close(CARD.label)


async def test_a_plan_follows_a_cancellation():
    """What has become free by it is given to others at once, not when something else happens."""
    scheduler = Planned()
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    query = RequestDecoder("echo", SIGNATURE).query(BODY, None)
    jobs = [dispatcher.submit(query, Waiting(), CARD.id, 1e9, 0.0) for _ in range(3)]
    await asyncio.sleep(0)
    assert scheduler.plans == 1
    for job in jobs:
        job.cancel()
        job.cancel()
    await asyncio.sleep(0)
    assert scheduler.plans == 2, "one for all of a turn"
    dispatcher.close(CARD.label)


@pytest.mark.parametrize("kind", [ActionType.LOAD, ActionType.INFER])
async def test_a_replica_whose_memory_is_out_of_step_is_broken(kind):
    """It gets nothing new, and what it was given is lost with it: asking again would be answered as before."""
    scheduler, broken = Planned(), []
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    replica = connected(
        dispatcher, written=[], wanted=lambda _: LoadSpec(CARD, 1), on_lost=broken.append
    )
    dispatcher.number_of(CARD.id)
    query = RequestDecoder("echo", SIGNATURE).query(BODY, None)
    dispatcher.submit(query, Waiting(), CARD.id, 1e9, 0.0)
    parts = [(1, 0, 1)] if kind is ActionType.INFER else []
    scheduler.actions = [Action(1, kind, 1, CARD.id, parts, 0.0, 9.5, 0.5)]
    dispatcher._pump()
    if kind is ActionType.LOAD:
        told = wire.MessageType.LOADED
        message = wire.encode_loaded(1, wire.ActionStatus.NO_ROOM, {"error": "full"})
    else:
        told, status = wire.MessageType.RESULT, wire.ActionStatus.UNKNOWN_MODEL
        message = wire.result_head(1, status, wire.ReplicaTimes(0, 0, 0, 0), [(0, status)])
    dispatcher.on_message(replica, told, memoryview(message)[wire.HEAD.size :])
    assert [type(event) for event in scheduler.events[-1:]] == [WorkerDraining]
    assert [text.split(":")[0] for text in broken] == ["its memory is inconsistent"]
    dispatcher.close(CARD.label)


async def test_a_plan_follows_when_a_worker_drains():
    """What it had promised is planned with others at once."""
    scheduler = Planned()
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    dispatcher.worker_draining(1)
    await asyncio.sleep(0)
    assert scheduler.plans == 1
    dispatcher.close(CARD.label)


async def test_a_batch_that_was_not_begun_took_no_time():
    """The replica tells when it gave it back, which says nothing about batches nor the way back."""
    scheduler = Planned()
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    replica = connected(dispatcher, written=[], wanted=lambda _: None, on_lost=lambda _: None)
    scheduler.actions = [Action(2, ActionType.INFER, 1, CARD.id, [(1, 0, 1)], 0.0, 1e9, 0.001)]
    query = RequestDecoder("echo", SIGNATURE).query(BODY, None)
    dispatcher.submit(query, Waiting(), CARD.id, 1e9, 0.0)
    dispatcher._pump()
    times = wire.ReplicaTimes(0, 0, 0, 0)
    late = wire.ActionStatus.TOO_LATE
    head = wire.result_head(2, late, times, [(0, late)])
    dispatcher.on_message(replica, wire.MessageType.RESULT, memoryview(head)[wire.HEAD.size :])
    ended = scheduler.events[-1]
    assert (ended.action, ended.ok, ended.times) == (2, False, None)
    dispatcher.close(CARD.label)


class Planned:
    """A scheduler that does what it is told."""

    def __init__(self):
        self.actions = []
        self.events = []
        self.plans = 0

    def on(self, event, now_s):
        self.events.append(event)

    def plan(self, now_s):
        self.plans += 1
        actions, self.actions = self.actions, []
        return Plan(actions, [], None)


class Line:
    """A transport that notes each message that is written."""

    def __init__(self, written: list[bytes]) -> None:
        self._written = written

    def writelines(self, buffers) -> None:
        self._written.append(b"".join(buffers))

    def abort(self) -> None:
        """Nothing is left to be written."""


async def test_windows_and_unloading_go_over_the_wire():
    """Any scheduler's action reaches the replica with its window; what the replica says comes back."""
    scheduler = Planned()
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None)
    sent = []
    replica = connected(
        dispatcher,
        written=sent,
        wanted=lambda _: LoadSpec(CARD, 2, 8, 0.5),
        on_loaded=lambda *_: pytest.fail("a load that was not begun says nothing of the model"),
        on_lost=sent.append,
    )
    scheduler.actions = [
        Action(1, ActionType.LOAD, 1, CARD.id, [], 0.0, 9.5, 0.5),
        Action(2, ActionType.INFER, 1, CARD.id, [(1, 0, 1)], 7.0, 7.5, 0.001),
        Action(3, ActionType.UNLOAD, 1, CARD.id, [], 8.0, 9.0, 0.0),
    ]
    waiter = Waiting()
    query = RequestDecoder("echo", SIGNATURE).query(BODY, None)
    dispatcher.submit(query, waiter, CARD.id, 1e9, 0.0)
    dispatcher._pump()
    bodies = [memoryview(message)[wire.HEAD.size :] for message in sent]
    load, infer = wire.parse_load(bodies[0]), wire.parse_infer(bodies[1])
    unload = wire.parse_unload(bodies[2])
    assert (load.earliest_ns, load.latest_ns) == (0, 9_500_000_000)
    assert (load.threads, load.max_items, load.warmup_s) == (2, 8, 0.5)
    assert (infer.earliest_ns, infer.latest_ns) == (7_000_000_000, 7_500_000_000)
    assert (unload.earliest_ns, unload.latest_ns, unload.model) == (
        8_000_000_000,
        9_000_000_000,
        load.model,
    )
    message = wire.encode_loaded(
        1, wire.ActionStatus.TOO_LATE, {"error": "too late", "started_ns": -1, "load_s": True}
    )
    dispatcher.on_message(replica, wire.MessageType.LOADED, memoryview(message)[wire.HEAD.size :])
    ended = scheduler.events[-1]
    assert (ended.action, ended.ok, ended.times) == (1, False, None)
    message = wire.encode_unloaded(3, wire.ActionStatus.OK, {})
    dispatcher.on_message(replica, wire.MessageType.UNLOADED, memoryview(message)[wire.HEAD.size :])
    ended = scheduler.events[-1]
    assert isinstance(ended, ActionResult)
    assert (ended.action, ended.worker, ended.ok, ended.times) == (3, 1, True, None)
    assert len(replica.sent) == 1
    dispatcher.close(CARD.label)


async def test_two_models_of_a_worker_are_told_apart():
    """Each has a number of its own on the wire; what a load took reaches the scheduler."""
    scheduler = Planned()
    now_s = 50.0
    dispatcher = Dispatcher(scheduler, on_batch=lambda *_: None, clock=lambda: now_s)
    sent, loaded = [], []
    other = ModelSpec(name="other", version="7", kind="echo", path=None)
    cards = {card.id: card for card in (CARD, other)}
    replica = connected(
        dispatcher,
        written=sent,
        wanted=lambda model: LoadSpec(cards[model], 1),
        on_loaded=lambda model, outcome: loaded.append((model, outcome)),
        on_lost=sent.append,
    )
    scheduler.actions = [
        Action(1, ActionType.LOAD, 1, CARD.id, [], 0.0, math.inf, 0.5),
        Action(2, ActionType.LOAD, 1, other.id, [], 0.0, math.inf, 0.5),
        Action(3, ActionType.UNLOAD, 1, other.id, [], 0.0, math.inf, 0.0),
    ]
    dispatcher.submit(
        RequestDecoder("echo", SIGNATURE).query(BODY, None), Waiting(), CARD.id, 1e9, now_s
    )
    dispatcher._pump()
    bodies = [memoryview(message)[wire.HEAD.size :] for message in sent]
    first, second = wire.parse_load(bodies[0]), wire.parse_load(bodies[1])
    assert (first.name, second.name, second.version) == ("echo", "other", "7")
    assert first.model != second.model == wire.parse_unload(bodies[2]).model
    detail = {
        "signature": SIGNATURE.as_json(),
        "load_s": 2.0,
        "started_ns": 51_000_000_000,
        "memory_bytes": 5,
    }
    message = wire.encode_loaded(2, wire.ActionStatus.OK, detail)
    dispatcher.on_message(replica, wire.MessageType.LOADED, memoryview(message)[wire.HEAD.size :])
    assert scheduler.events[-1].times == pytest.approx((1.0, 0.0, 2.0, 0.0))
    ((model, outcome),) = loaded
    assert model == other.id
    assert (outcome.load_s, outcome.memory_bytes) == (2.0, 5)
    dispatcher.close(CARD.label)
