"""The host over a real socket: loads, batches, windows, errors of models, garbage, the end."""

import gc
import json
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import wire
from serving.replica import main_loop
from serving.replica.message_socket import MessageSocket
from serving.wire import ActionStatus

MODELS = '''
import time

import numpy as np

from serving.models.cuda import GpuMemoryFull

X = [{"name": "x", "datatype": "INT32", "shape": [-1, -1]}]


class Fussy:
    """Doubles its input; some numbers make it misbehave."""

    inputs = outputs = X

    def __init__(self):
        self.calls = []

    def predict_batch(self, inputs):
        x = inputs["x"]
        self.calls.append(len(x))
        if (x == -1).any():
            raise ValueError("minus one\\nis not liked")
        if (x == -2).any():
            raise MemoryError
        if (x == -3).any():
            raise SystemExit(3)
        if (x == -4).any():
            return {"x": x[1:]}
        if (x == -5).any():
            raise ValueError("x" * 10_000)
        if (x == -7).any():
            raise GpuMemoryFull
        if (x == -6).any():
            return {"x": np.full_like(x, len(self.calls))}
        x *= 2
        return {"x": x}


class Staged:
    """Sleeps for as many milliseconds as each stage is told to; fails in the stage that is told minus one."""

    inputs = outputs = X

    def preprocess(self, inputs):
        self._work(inputs["x"][0, 0])
        return inputs["x"]

    def predict_batch(self, x):
        self._work(x[0, 1])
        return x

    def postprocess(self, x):
        self._work(x[0, 2])
        return {"x": x[:, :1]}

    def _work(self, milliseconds):
        if milliseconds < 0:
            raise ValueError("told to fail")
        time.sleep(milliseconds / 1000)


class Lazy:
    """Its first call is slow; -1 makes it raise."""

    inputs = outputs = X
    sample_inputs = {"x": [[1], [2]]}
    is_warm = False

    def predict_batch(self, inputs):
        if not self.is_warm:
            time.sleep(0.2)
            self.is_warm = True
        if (inputs["x"] == -1).any():
            raise ValueError("minus one is not liked")
        return inputs


class Unliked(Lazy):
    sample_inputs = {"x": [[-1]]}


class Quits:
    def __init__(self):
        raise SystemExit(1)
'''


@pytest.fixture(name="path")
def _path(tmp_path):
    file = tmp_path / "fussy.py"
    file.write_text(MODELS)
    return file


@pytest.fixture(name="talk")
def _talk(converse):
    ours, theirs = socket.socketpair()
    codes = []

    def run():
        with theirs:
            codes.append(main_loop.serve(theirs, max_message_bytes=1 << 22))

    gc.freeze()  # a load collects garbage: not among all that the tests have imported
    thread = threading.Thread(target=run)
    thread.start()
    talk = converse(ours)
    talk.codes = codes
    talk.thread = thread
    yield talk
    ours.close()
    thread.join(20)
    gc.unfreeze()
    assert not thread.is_alive()


@pytest.fixture(name="fussy")
def _fussy(talk, path):
    talk.hello()
    assert talk.load("python", f"{path}:Fussy").status == 0
    return talk


@pytest.fixture(name="ints")
def _ints(frame):
    def make(rows, **cut):
        array = np.array(rows, "<i4")
        return frame(("x", "INT32", array.shape, array.tobytes()), **cut)

    return make


def _rows(tensors):
    (tensor,) = tensors
    return np.frombuffer(tensor.data, "<i4").reshape(tensor.shape).tolist()


def test_it_greets_first(talk):
    """HELLO comes unasked and tells version, pid, features and the shared clock."""
    before_ns = time.monotonic_ns()
    hello = talk.hello()
    assert hello.wire == 1
    assert hello.features == wire.FEATURES
    assert abs(hello.monotonic_ns - before_ns) < 60e9


def test_it_tells_the_signature(talk):
    """A load is answered with the signature and its time."""
    talk.hello()
    loaded = talk.load("echo")
    assert loaded.status == 0
    assert loaded.detail["signature"]["inputs"][0]["name"] == "data"
    assert loaded.detail["load_s"] >= 0


def test_a_batch_is_answered_in_order(fussy, ints):
    """Each request gets its own rows, whatever it was grouped with."""
    message, outcomes = fussy.infer([ints([[1, 2]]), ints([[3], [4]]), ints([[5, 6]])])
    assert message.status == 0
    assert [_rows(tensors) for tensors in outcomes] == [[[2, 4]], [[6], [8]], [[10, 12]]]


def test_alike_requests_share_a_call(fussy, ints):
    """Requests of one layout run together, once."""
    _, outcomes = fussy.infer([ints([[-6]])] * 5)
    assert [_rows(tensors) for tensors in outcomes] == [[[1]]] * 5


def test_times_are_told(fussy, ints):
    """A result tells when it began, on the shared clock, and the time of each stage."""
    sent_ns = time.monotonic_ns()
    message, _ = fussy.infer([ints([[1]])])
    times = message.times
    assert sent_ns <= times.started_ns
    total_ns = times.input_ns + times.exec_ns + times.output_ns
    assert 0 < total_ns <= time.monotonic_ns() - times.started_ns


@pytest.mark.parametrize("stage", ["input_ns", "exec_ns", "output_ns"])
def test_stages_of_a_model_are_timed_apart(talk, path, ints, stage):
    """What a model does before it predicts counts as input, what it does afterwards as output."""
    talk.hello()
    assert talk.load("python", f"{path}:Staged").status == 0
    row = [40 * (name == stage) for name in ("input_ns", "exec_ns", "output_ns")]
    message, outcomes = talk.infer([ints([row]), ints([[7, 0, 0]])])
    assert [_rows(tensors) for tensors in outcomes] == [[[row[0]]], [[7]]]
    assert getattr(message.times, stage) >= 40e6


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_stage_that_raises_fails_its_batch(talk, path, ints, place):
    """A fault in any stage is told as the model's, and the replica lives on."""
    talk.hello()
    talk.load("python", f"{path}:Staged")
    row = [0, 0, 0]
    row[place] = -1
    message, outcomes = talk.infer([ints([row])])
    assert (message.status, outcomes[0][0]) == (ActionStatus.MODEL_RAISED,) * 2
    assert "told to fail" in outcomes[0][1]
    assert talk.infer([ints([[0, 0, 0]])])[0].status == 0


def test_large_frames_pass(fussy, ints):
    """Frames above the sockets' buffers arrive whole, both ways."""
    rows = np.arange(400_000).reshape(2, -1)
    _, outcomes = fussy.infer([ints(rows), ints(rows + 1)])
    assert [_rows(tensors) for tensors in outcomes] == [
        (rows * 2).tolist(),
        (rows * 2 + 2).tolist(),
    ]


def test_json_is_decoded_here(fussy, ints):
    """A JSON body is decoded by the replica."""
    item = {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [7, 8]}
    body = json.dumps({"inputs": [item]}).encode()
    _, outcomes = fussy.infer([(body, wire.Encoding.OIP_JSON, 0, 0), ints([[1, 2]])])
    assert [_rows(tensors) for tensors in outcomes] == [[[14, 16]], [[2, 4]]]


def test_a_bad_input_fails_alone(fussy, ints):
    """Wrong JSON and a wrong layout fail, the rest of the batch is answered."""
    broken = (b"{", wire.Encoding.OIP_JSON, 0, 0)
    message, outcomes = fussy.infer([broken, ints([[1]]), ints([1])])
    assert message.status == 0
    assert outcomes[0][0] == outcomes[2][0] == ActionStatus.INVALID_INPUT
    assert _rows(outcomes[1]) == [[2]]


def test_a_batch_of_bad_inputs_has_their_status(fussy, ints):
    """Where nothing succeeded the result has the status of the first request."""
    message, outcomes = fussy.infer([ints([1])])
    assert message.status == outcomes[0][0] == ActionStatus.INVALID_INPUT


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [
        (-1, ActionStatus.MODEL_RAISED, "ValueError: minus one"),
        (-2, ActionStatus.OUT_OF_MEMORY, "MemoryError: no memory for a batch of 1 items"),
        (-3, ActionStatus.MODEL_RAISED, "SystemExit: 3"),
        (-4, ActionStatus.BROKEN_CONTRACT, "for 1 items"),
        (-5, ActionStatus.MODEL_RAISED, "ValueError: xxx"),
        (-7, ActionStatus.OUT_OF_MEMORY, "no GPU memory for a batch of 1 items; lower batching"),
    ],
)
def test_what_a_model_does_stays_with_its_request(fussy, ints, number, status, text):
    """An exception or broken contract fails the request that made it, bounded; the replica lives on."""
    message, outcomes = fussy.infer([ints([[1]]), ints([[number]]), ints([[1, 1]])])
    assert message.status == 0
    assert outcomes[1][0] == status
    assert text in outcomes[1][1]
    assert len(outcomes[1][1]) <= 500
    assert _rows(outcomes[0]) == [[2]]
    assert _rows(outcomes[2]) == [[2, 2]]
    assert _rows(fussy.infer([ints([[4]])])[1][0]) == [[8]]


@given(bad=st.sets(st.integers(0, 15), max_size=2))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bad_requests_fail_alone(fussy, ints, bad):
    """Up to two of sixteen, wherever they are: the others are answered, each with its own answer."""
    entries = [ints([[-1 if place in bad else place]]) for place in range(16)]
    _, outcomes = fussy.infer(entries)
    for place, outcome in enumerate(outcomes):
        if place in bad:
            assert outcome[0] == ActionStatus.MODEL_RAISED
        else:
            assert _rows(outcome) == [[2 * place]]


def test_a_model_that_fails_whatever_it_gets_is_not_asked_for_each_request(talk, path, ints):
    """Of sixteen requests a few are tried alone; then the model is at fault, and the others fail with it."""
    talk.hello()
    talk.load("python", f"{path}:Fussy")
    _, outcomes = talk.infer([ints([[-1]]) for _ in range(16)])
    assert [outcome[0] for outcome in outcomes] == [ActionStatus.MODEL_RAISED] * 16
    _, outcomes = talk.infer([ints([[-6]])])
    assert _rows(outcomes[0])[0][0] < 16


def test_a_closed_window_is_not_started(fussy, ints):
    """An action that comes after its window is answered and not run."""
    message, outcomes = fussy.infer([ints([[1]]), ints([[2]])], latest_ns=time.monotonic_ns() - 1)
    assert message.status == ActionStatus.TOO_LATE
    assert [status for status, _ in outcomes] == [ActionStatus.TOO_LATE] * 2
    assert _rows(fussy.infer([ints([[-6]])])[1][0]) == [[1]]


def test_an_early_action_waits_for_its_window(fussy, ints):
    """An action that comes before its window starts when it opens."""
    earliest_ns = time.monotonic_ns() + 50_000_000
    message, outcomes = fussy.infer([ints([[1]])], earliest_ns=earliest_ns)
    assert message.times.started_ns >= earliest_ns
    assert _rows(outcomes[0]) == [[2]]


def test_a_load_obeys_its_window(talk):
    """A load that is late is not done."""
    talk.hello()
    assert talk.load("echo", latest_ns=1).status == ActionStatus.TOO_LATE


@pytest.mark.parametrize(
    ("phrase", "kind", "where", "text"),
    [
        ("an unknown kind", "fortran", None, "kind 'fortran'"),
        ("a missing file", "onnx", "/nowhere.onnx", "no such file"),
        ("a constructor that exits", "python", "{path}:Quits", "SystemExit"),
    ],
)
def test_a_failed_load_is_told(talk, path, phrase, kind, where, text):
    """A model that cannot be loaded is answered with the reason, and the replica lives on."""
    talk.hello()
    loaded = talk.load(kind, where and where.format(path=path))
    assert loaded.status == ActionStatus.LOAD_FAILED
    assert text in loaded.detail["error"]
    assert talk.load("echo").status == 0


def test_a_load_is_answered_when_the_model_is_warm(talk, path, ints):
    """Its first call is paid before, and LOADED tells what was run; without time nothing is."""
    talk.hello()
    loaded = talk.load("python", f"{path}:Lazy", max_items=4, warmup_s=5.0)
    assert loaded.detail["warmup"]["source"] == "model"
    assert set(loaded.detail["warmup"]["batch_s"]) == {"1", "4"}
    assert loaded.detail["load_s"] > loaded.detail["warmup"]["warmup_s"] > 0.2
    message, _ = talk.infer([ints([[1]])])
    assert message.times.exec_ns < 100e6
    loaded = talk.load("python", f"{path}:Lazy")
    assert loaded.detail["warmup"]["source"] == "none"


def test_a_failing_sample_is_a_failed_load(talk, path, ints):
    """The model that had the number before answers on."""
    talk.hello()
    assert talk.load("python", f"{path}:Fussy").status == 0
    loaded = talk.load("python", f"{path}:Unliked", warmup_s=5.0)
    assert loaded.status == ActionStatus.LOAD_FAILED
    assert "sample_inputs" in loaded.detail["error"]
    assert "minus one is not liked" in loaded.detail["error"]
    assert np.frombuffer(talk.infer([ints([[4]])])[1][0][0].data, "<i4") == [8]


def test_models_have_numbers(fussy, ints, frame):
    """Two models live side by side; an unloaded one is unknown, its neighbour is not."""
    assert fussy.load("echo", model=2).status == 0
    data = frame(("data", "UINT8", (1, 2), b"ab"))
    assert fussy.infer([data], model=2)[1][0][0].data == b"ab"
    assert fussy.unload(1).status == 0
    message, outcomes = fussy.infer([ints([[1]])] * 2)
    assert message.status == ActionStatus.UNKNOWN_MODEL
    assert [status for status, _ in outcomes] == [ActionStatus.UNKNOWN_MODEL] * 2
    assert fussy.infer([data], model=2)[0].status == 0
    assert fussy.unload(1).status == ActionStatus.UNKNOWN_MODEL


def test_models_keep_to_the_budget(talk):
    """What has no room is not loaded until something was unloaded; a model may replace itself."""
    talk.hello()
    assert talk.load("echo", model=1, pages=2, budget=3).status == 0
    assert talk.load("echo", model=1, pages=3, budget=3).status == 0
    refused = talk.load("echo", model=2, pages=1, budget=3)
    assert refused.status == ActionStatus.NO_ROOM
    assert refused.detail["error"].startswith("1 pages of 3 are needed and 3 are in use")
    assert talk.unload(1).status == 0
    assert talk.load("echo", model=2, pages=1, budget=3).status == 0


def test_a_load_tells_what_it_took(talk):
    """When it began, and the memory; the gateway plans with both."""
    talk.hello()
    before_ns = time.monotonic_ns()
    detail = talk.load("echo").detail
    assert before_ns <= detail["started_ns"] <= time.monotonic_ns() - 1e9 * detail["load_s"] + 1e6
    assert detail["memory_bytes"] >= 0


def test_an_empty_batch_is_answered(fussy):
    """A batch without requests is answered with none."""
    message, outcomes = fussy.infer([])
    assert (message.status, outcomes) == (0, [])


def test_two_batches_may_wait(fussy, ints):
    """What was sent before an answer came is answered in turn."""
    actions = [fussy.send([ints([[n]])]) for n in (1, 2, 3)]
    results = [fussy.result() for _ in actions]
    assert [message.action_id for message, _ in results] == actions
    assert [_rows(outcomes[0]) for _, outcomes in results] == [[[2]], [[4]], [[6]]]


def test_long_runs_are_answered(fussy, ints):
    """Collecting garbage between actions disturbs none of them."""
    for number in range(main_loop._ACTIONS_PER_COLLECTION + 10):
        assert _rows(fussy.infer([ints([[number]])])[1][0]) == [[2 * number]]


def test_garbage_is_collected_in_pauses(fussy, ints):
    """Once, when enough batches ran and none waits; for that no further message is needed."""
    collected = []

    def note(phase, info):
        if phase == "start" and threading.current_thread() is fussy.thread:
            collected.append(info["generation"])

    one = ints([[1]])
    count = main_loop._ACTIONS_PER_COLLECTION + main_loop._ACTIONS_PER_LOOK - 1  # and the load
    gc.callbacks.append(note)
    gc.disable()
    try:
        for _ in range(count):
            fussy.send([one])
        for _ in range(count):
            fussy.result()
        deadline_s = time.monotonic() + 10
        while not collected and time.monotonic() < deadline_s:
            time.sleep(0.001)
    finally:
        gc.enable()
        gc.callbacks.remove(note)
    assert collected == [2]


def test_it_ends_when_the_gateway_does(talk):
    """A closed socket ends the replica in order."""
    talk.hello()
    talk.sock.close()
    talk.thread.join(20)
    assert talk.codes == [main_loop.EXIT_CLOSED]


def test_it_ends_when_the_gateway_dies_inside_a_message(talk):
    """A socket that is closed inside a message ends the replica as well."""
    talk.hello()
    talk.sock.sendall(wire.encode_unload(1, model=1)[:-1])
    talk.sock.close()
    talk.thread.join(20)
    assert talk.codes == [main_loop.EXIT_CLOSED]


@pytest.mark.parametrize(
    ("phrase", "garbage"),
    [
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n"),
        ("a message above the limit", wire.HEAD.pack(b"LW", 1, wire.MessageType.INFER, 1 << 23)),
        ("a message of the other side", wire.encode_hello(pid=1, monotonic_ns=0)),
        (
            "a batch that is cut short",
            wire.HEAD.pack(b"LW", 1, wire.MessageType.INFER, 4) + b"1234",
        ),
        ("a load without JSON", wire.HEAD.pack(b"LW", 1, wire.MessageType.LOAD, 24) + bytes(24)),
    ],
)
def test_garbage_ends_it(talk, phrase, garbage):
    """A replica that gets what is not the wire ends with the code that says so."""
    talk.hello()
    talk.sock.sendall(garbage)
    talk.thread.join(20)
    assert talk.codes == [main_loop.EXIT_GARBAGE]


def test_a_message_that_the_socket_takes_in_pieces_is_whole():
    """Small and large buffers go together, and what the socket leaves of them goes after them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.settimeout(10)
        block = np.arange(100_000, dtype=np.uint32).view(np.uint8)
        buffers = [b"head", b"er", *[block.data, b"between"] * 600]
        sending = threading.Thread(
            target=lambda: MessageSocket(ours, max_message_bytes=1000).send(buffers)
        )
        sending.start()
        with theirs.makefile("rb") as stream:
            whole = b"".join(buffers)
            assert stream.read(len(whole)) == whole
        sending.join(10)
