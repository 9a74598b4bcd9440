"""The containers in other languages: built and served as their pages say, and held to the wire.

Their answers are compared with the same model computed by NumPy.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from serving import wire, zoo
from serving.values import Tensor
from serving.wire import ActionStatus
from tests.fakes.admin import token_fields
from tests.serving.conftest import Talk

ROOT = pathlib.Path(__file__).parent.parent
LANGUAGES = {
    "container_cpp": ("g++", "no g++; on Debian: apt-get install g++"),
    "container_java": ("javac", "no JDK; on Debian: apt-get install default-jdk-headless"),
}
SAMPLE = np.load(ROOT / "serving" / "zoo" / "samples.npz")
IMAGES = SAMPLE["image"][:64]


def expected(images):
    """The scores of the bundled linear model."""
    with np.load(zoo.find("linear").path) as arrays:
        sums = images.reshape(len(images), -1) @ arrays["coef"].T.astype(float)
        sums += arrays["intercept"]
    powers = np.exp(sums - sums.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def commands(name):
    """The lines of the page's first block, as words; its Python is this one."""
    page = (ROOT / "examples" / name / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```\n(.*?)```", page, re.DOTALL)
    assert block
    words = [line.split() for line in block[1].splitlines()]
    return [[sys.executable if word == "python" else word for word in line] for line in words]


@pytest.fixture(scope="module", params=LANGUAGES, name="built")
def _built(request, tmp_path_factory):
    """A copy of the examples in which a container was built as its page says, and the last line, that serves."""
    program, reason = LANGUAGES[request.param]
    if shutil.which(program) is None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("container", "*.bin", "classes", "__pycache__")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=ignored)
    (root / "serving" / "zoo").mkdir(parents=True)
    shutil.copy(ROOT / "serving" / "zoo" / "samples.npz", root / "serving" / "zoo")
    *builds, serve = commands(request.param)
    for build in builds:
        # An absolute path, and no folder of the copy that is named as our package on the way.
        words = [word.replace("examples/", f"{root}/examples/") for word in build]
        subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    words = [word.replace("examples/", f"{root}/examples/") for word in serve]
    return zoo.find(str(root / "examples" / request.param)), words


@contextlib.contextmanager
def served(words):
    """A running server: its ports."""
    with subprocess.Popen(
        [*words, "--port", "0", "--admin-port", "0", "--log-level", "error"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            line = server.stdout.readline()
            assert line, server.stderr.read()
            yield json.loads(line)
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_container_is_served_as_its_page_says(built):
    """It answers binary, JSON small and large, and split requests with the right scores; a killed one is replaced."""
    card, words = built
    path = f"/v2/models/{card.name}/infer"
    item = {"name": "image", "datatype": "UINT8", "shape": list(IMAGES.shape)}
    with served(words) as facts:
        header = json.dumps(
            {"inputs": [item | {"parameters": {"binary_data_size": IMAGES.nbytes}}]}
        ).encode()
        fields = {"Inference-Header-Content-Length": str(len(header))}
        status, answer = ask(facts["port"], "POST", path, header + IMAGES.tobytes(), fields)
        assert status == 200, answer
        scores = np.array(answer["outputs"][0]["data"]).reshape(-1, 10)
        np.testing.assert_allclose(scores, expected(IMAGES), atol=1e-5)
        assert (scores.argmax(1) == SAMPLE["labels"][:64]).mean() > 0.75
        for count in (1, 32):
            few = item | {"shape": [count, 3, 32, 32], "data": IMAGES[:count].tolist()}
            body = json.dumps({"inputs": [few]})
            status, answer = ask(facts["port"], "POST", path, body)
            assert status == 200, answer
            np.testing.assert_allclose(
                np.array(answer["outputs"][0]["data"]).reshape(-1, 10), scores[:count], atol=1e-6
            )
        assert len(body) > 64 * 1024
        admin = facts["admin_port"]
        status, replicas = ask(admin, "GET", "/admin/replicas", headers=token_fields(admin))
        victim = replicas["replicas"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            status, replicas = ask(admin, "GET", "/admin/replicas", headers=token_fields(admin))
            members = replicas["replicas"]
            if [m["state"] for m in members] == ["ready"] * 2 and victim not in {
                m["pid"] for m in members
            }:
                break
            time.sleep(0.05)
        assert [death["reason"] for death in replicas["deaths"]] == ["killed"]
        assert ask(facts["port"], "POST", path, body)[0] == 200


# The wire, spoken to the program alone


@pytest.fixture(name="talk")
def _talk(built, tmp_path):
    card, _ = built
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(20)
        with subprocess.Popen(
            [*card.program.words, str(path)], cwd=card.program.folder, stderr=subprocess.PIPE
        ) as program:
            sock, _ = listener.accept()
            talk = Talk(sock)
            talk.program = program
            talk.card = card
            assert talk.hello().pid == program.pid
            yield talk
            sock.close()
            try:
                assert program.wait(20) == (0 if not hasattr(talk, "code") else talk.code)
            finally:
                program.kill()


@pytest.fixture(name="loaded")
def _loaded(talk):
    answer = talk.load("command", talk.card.path)
    assert answer.status == 0, answer
    return talk


def frame(images, name="image", datatype="UINT8", **cut):
    tensors = [Tensor(name, datatype, images.shape, images.tobytes())]
    data = wire.encode_descriptor(tensors) + tensors[0].data
    return data, wire.Encoding.TENSORS, cut.get("start", 0), cut.get("stop", 0)


def scores_of(tensors):
    (tensor,) = tensors
    assert (tensor.name, tensor.datatype) == ("scores", "FP32")
    return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)


def test_it_tells_what_it_serves(loaded):
    """A load is answered with the signature."""
    signature = loaded.load("command", loaded.card.path, model=2).detail["signature"]
    assert signature["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 3, 32, 32]}]


def test_a_batch_is_answered_in_order_and_a_bad_request_fails_alone(loaded):
    """Each request gets its own items, those it asks for; what cannot be read costs no other."""
    cut_short = frame(IMAGES[:1])[0][:-1]
    before_ns = time.monotonic_ns()
    message, outcomes = loaded.infer(
        [
            frame(IMAGES[:2]),
            frame(IMAGES[:1], name="picture"),
            (cut_short, wire.Encoding.TENSORS, 0, 0),
            frame(IMAGES[:5], start=2, stop=4),
            (b"{}", wire.Encoding.OIP_JSON, 0, 0),
            frame(IMAGES[:1], start=1, stop=3),
            frame(IMAGES[:0]),
            (b"\xff\xff\xff\xff", wire.Encoding.TENSORS, 0, 0),
            frame(IMAGES[4:5]),
        ]
    )
    assert message.status == 0
    np.testing.assert_allclose(scores_of(outcomes[0]), expected(IMAGES[:2]), atol=1e-5)
    np.testing.assert_allclose(scores_of(outcomes[3]), expected(IMAGES[2:4]), atol=1e-5)
    np.testing.assert_allclose(scores_of(outcomes[8]), expected(IMAGES[4:5]), atol=1e-5)
    assert scores_of(outcomes[6]).shape == (0, 10)
    for place in (1, 2, 4, 5, 7):
        assert outcomes[place][0] == ActionStatus.INVALID_INPUT
        assert outcomes[place][1]
    times = message.times
    assert before_ns <= times.started_ns <= time.monotonic_ns()
    assert 0 < times.input_ns + times.exec_ns + times.output_ns < time.monotonic_ns() - before_ns


def test_a_batch_without_any_success_has_the_first_status(loaded):
    """The message's status is that of its first request where none succeeded; an empty one is fine."""
    message, _ = loaded.infer([frame(IMAGES[:1], name="picture")])
    assert message.status == ActionStatus.INVALID_INPUT
    message, outcomes = loaded.infer([])
    assert (message.status, outcomes) == (0, [])


def test_windows_are_obeyed(loaded):
    """An action that comes early waits; one that comes late is told so and not done."""
    earliest_ns = time.monotonic_ns() + 50_000_000
    message, outcomes = loaded.infer([frame(IMAGES[:1])], earliest_ns=earliest_ns)
    assert message.times.started_ns >= earliest_ns
    assert len(scores_of(outcomes[0])) == 1
    message, outcomes = loaded.infer([frame(IMAGES[:1])], latest_ns=1)
    assert message.status == outcomes[0][0] == ActionStatus.TOO_LATE
    assert loaded.load("command", loaded.card.path, latest_ns=1).status == ActionStatus.TOO_LATE


def test_models_come_and_go(loaded):
    """An unloaded model is unknown."""
    assert loaded.unload().status == 0
    message, outcomes = loaded.infer([frame(IMAGES[:1])])
    assert message.status == outcomes[0][0] == ActionStatus.UNKNOWN_MODEL
    assert loaded.unload().status == ActionStatus.UNKNOWN_MODEL


def test_weights_that_are_none_are_told(talk, tmp_path):
    """A missing or wrong file, and none at all, are answered with the reason; the program lives on."""
    wrong = tmp_path / 'wrong "é\\.bin'
    wrong.write_bytes(b"1234")
    for path, text in ((tmp_path / "none.bin", "none.bin"), (wrong, "é"), (None, "model.yaml")):
        answer = talk.load("command", path)
        assert answer.status == ActionStatus.LOAD_FAILED
        assert text in answer.detail["error"]
    assert talk.load("command", talk.card.path).status == 0


def test_garbage_ends_it(talk):
    """What is not the wire ends the program with the code that says so."""
    talk.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert talk.program.wait(20) == 65
    talk.code = 65


def test_a_gateway_that_dies_inside_a_message_ends_it(talk):
    """A stream that ends early is an end in order."""
    talk.sock.sendall(wire.encode_unload(1, model=1)[:-1])
    talk.sock.close()
    assert talk.program.wait(20) == 0


def test_a_program_without_a_socket_says_how_it_is_used(built):
    """Started by hand, it points to its page; without a gateway, it says so."""
    card, _ = built
    for arguments, code in (([], 64), (["/nowhere/s"], 69)):
        done = subprocess.run(
            [*card.program.words, *arguments],
            cwd=card.program.folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == code
        assert done.stderr
