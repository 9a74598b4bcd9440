"""What one request costs the thread that serves everybody: bounded in every protocol, whatever is in it."""

import contextlib
import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import wire
from serving.api.clipper import queries
from serving.api.clipper.fields import RequestError
from serving.api.grpc import messages
from serving.api.open_inference.request_decoder import RequestDecoder
from serving.api.open_inference.skeleton import LARGE_JSON_BYTES, skeleton
from serving.api.parsing import bounded_json
from serving.api.parsing.parse_budget import MAX_NUMBERS, MAX_VALUES, ParseBudget
from serving.api.tensorflow import rest_codec
from serving.api.triton import extensions
from serving.error_text import nearest, short_repr
from serving.errors import InvalidRequest, JsonTooLarge, ServingError, UnknownModel
from serving.settings import ServingSettings
from serving.values import Signature, TensorSpec
from tests.corpora import CORPORA, header_bytes, signature
from tests.fakes.servables import arrays_of

FACTOR = 4
"""By which a machine may be slower than the one for which the law is written."""
MOST_S = 0.25
"""However large a request is."""
PACKED = {"oip: numbers, then null", "oip: empty arrays", "oip: a number of many digits"}
"""Corpora that a replica reads."""


def allowed_s(size):
    """Seconds of CPU that a body of so many bytes may take."""
    return FACTOR * min(0.02 + 0.3e-6 * size, MOST_S)


def cost_s(corpus, body):
    """Seconds of CPU that its reader takes; only a ServingError may leave it."""
    began_s = time.process_time()
    with contextlib.suppress(ServingError):
        corpus.read(body)
    return time.process_time() - began_s


@pytest.mark.parametrize("size", [1 << 16, 1 << 20, 1 << 24], ids=["64 KiB", "1 MiB", "16 MiB"])
@pytest.mark.parametrize("corpus", CORPORA, ids=lambda corpus: corpus.label)
def test_no_request_holds_the_thread_that_serves_everybody(corpus, size):
    """At most 20 ms and 0.3 us a byte, and a quarter of a second in all, whatever it is made of."""
    body = corpus.body(size)
    assert 0.5 * size < len(body) < 2 * size + 1000
    if corpus.reader == "depth" and size > bounded_json.MAX_JSON_BYTES:
        return  # it is not asked for longer ones
    tries = 0
    while cost_s(corpus, body) >= allowed_s(
        len(body)
    ):  # the first time other things may be made, too
        tries += 1
        assert tries < 3


@pytest.mark.parametrize(
    "corpus",
    [one for one in CORPORA if one.reader != "depth" and one.label not in PACKED],
    ids=lambda corpus: corpus.label,
)
def test_the_corpora_are_refused_in_a_line_when_they_are_large(corpus):
    """With what is too much, never with the megabytes that were sent."""
    with pytest.raises(InvalidRequest) as caught:
        corpus.read(corpus.body(10_000_000))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1500


# JSON


def image(side, key):
    """A picture of three channels, in one decimal a number, as JSON."""
    row = b",".join([b"0.5"] * side)
    channel = b"[" + b",".join([b"[" + row + b"]"] * side) + b"]"
    array = b"[[" + b",".join([channel] * 3) + b"]]"
    if key == b"data":
        head = b'{"inputs":[{"name":"x","shape":[1,3,%d,%d],"datatype":"FP32","data":'
        return head % (side, side) + array + b"}]}"
    return b'{"' + key + b'":' + array + b"}"


IMAGES = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 3, -1, -1)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
)


@pytest.mark.parametrize("key", [b"data", b"instances", b"inputs"])
def test_a_picture_in_json_is_left_to_the_replica(key):
    """1.2 million numbers are no value that is read here, over either protocol."""
    body = image(640, key)
    requests, codec = RequestDecoder("m", IMAGES), rest_codec.TensorFlowRestCodec("m", "1", IMAGES)
    query = requests.query(body, None) if key == b"data" else codec.large_query(body)
    assert query.encoding == wire.Encoding.OIP_JSON
    assert query.items == 1
    assert query.frame_bytes > 4_000_000


numbers = st.recursive(
    st.integers() | st.floats() | st.booleans() | st.none(), st.lists, max_leaves=10
).map(lambda value: value if isinstance(value, list) else [value])
others = st.recursive(
    st.integers() | st.text(alphabet='da"ta\\:[]{},', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "x"]), inner)
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(numbers, others, st.booleans()), max_size=4), st.sampled_from([None, 1]))
def test_a_skeleton_is_the_body_without_its_numbers(inputs, indent):
    """Arrays of numbers named `data` are empty in it, and nothing else is changed."""
    items = [
        {"more": more, "data": data} if is_last else {"data": data, "more": more}
        for data, more, is_last in inputs
    ]
    body = json.dumps({"inputs": items, "data": 5}, indent=indent).encode()
    found = json.loads(skeleton(body))
    assert len(found["inputs"]) == len(items)
    assert found["data"] == 5
    for item in found["inputs"]:
        assert item["data"] == []
    without = json.loads(skeleton(json.dumps([more for _, more, _ in inputs]).encode()))
    assert [item["more"] for item in found["inputs"]] == without


@given(st.text(alphabet='data"[]{}:, 1\\', max_size=60).map(str.encode))
def test_any_bytes_have_a_skeleton(body):
    """It is no longer than they are, and of what has no arrays named data it is all of them."""
    found = skeleton(body)
    assert len(found) <= len(body)
    assert b'"data"' in body or found == body


def test_a_skeleton_that_is_large_is_none():
    """Then the body is read whole, or refused."""
    texts = b'"' + b"a" * LARGE_JSON_BYTES + b'"'
    assert skeleton(b'{"id":' + texts + b',"data":[1]}') is None
    assert skeleton(b'{"data":[' + texts + b"]}") is None


def texts_request(elements):
    item = {"name": "x", "shape": [len(elements)], "datatype": "BYTES", "data": elements}
    return json.dumps({"inputs": [item]}).encode()


def test_what_is_counted_are_values_and_not_letters():
    """A text of 300,000 commas, brackets and quotes is one value; 70,000 texts are too many."""
    requests = RequestDecoder("m", signature("BYTES"))
    text = ',[{"\\' * 60_000
    query = requests.query(texts_request([text]), None)
    assert arrays_of(query.frame)["x"].tolist() == [text.encode()]
    assert requests.query(texts_request(["a"] * 60_000), None).items == 60_000
    with pytest.raises(InvalidRequest, match="more than 65536 texts, arrays and objects"):
        requests.query(texts_request(["a"] * 70_000), None)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (b"[" + b'"",' * (MAX_VALUES - 2) + b'""]', True),
        (b"[" + b'"",' * MAX_VALUES + b'""]', False),
        (b"[" + b"1," * (MAX_NUMBERS - 2) + b"1]", True),
        (b"[" + b"1," * MAX_NUMBERS + b"1]", False),
        (b"[" + b"[]," * (MAX_VALUES - 2) + b"[]]", True),
        (b"[" + b"{}," * MAX_VALUES + b"{}]", False),
        (b'["' + b"," * (MAX_NUMBERS + 9) + b'"]', True),
        (b'["' + b'\\"' * (MAX_VALUES * 2 + 9) + b'"]', True),
        (b'["' + b"\\\\" * (MAX_VALUES * 2 + 9) + b'"]', True),
    ],
)
def test_the_bounds_of_values(text, is_read):
    """Texts, arrays and objects on one hand, values of all kinds on the other."""
    if is_read:
        bounded_json.check(text)
        assert bounded_json.read(text) == json.loads(text)
        return
    with pytest.raises(InvalidRequest, match="send less per request"):
        bounded_json.check(text)


@given(st.text(alphabet='\\"[]{},a', max_size=40).map(str.encode))
def test_depth_is_that_outside_of_texts(text):
    """As told letter by letter; a text that does not end goes to the end."""
    level = deepest = 0
    in_text = is_escaped = False
    for letter in text:
        if is_escaped:
            is_escaped = False
        elif letter == ord("\\"):
            if not in_text:
                return  # no JSON from here on
            is_escaped = True
        elif letter == ord('"'):
            in_text = not in_text
        elif not in_text:
            level += (letter in b"[{") - (letter in b"]}")
            deepest = max(deepest, level)
    opening = b"[" * (bounded_json.MAX_DEPTH + 1)  # below that many nothing is counted
    assert bounded_json.depth(opening + text) == len(opening) + deepest


def test_photographs_in_base64_are_read():
    """Three megabytes are four in base64, the default limit; a larger one says which limit it is."""
    codec = rest_codec.TensorFlowRestCodec("m", "1", signature("BYTES"))
    start, end = b'{"instances":[{"b64":"', b'"}]}'
    letters = bounded_json.MAX_JSON_BYTES - len(start) - len(end)
    query = codec.query(rest_codec.request(start + b"AAAA" * (letters // 4) + end), "predict")
    assert query.frame_bytes > 3_000_000
    with pytest.raises(JsonTooLarge, match=r"4194304 bytes \(server.max_json_bytes\)") as caught:
        rest_codec.request(start + b"AAAA" * (letters // 4 + 9) + end)
    assert caught.value.status == 413


def test_the_limit_is_a_setting_in_every_protocol():
    """What the routes are given reaches the readers."""
    settings = ServingSettings().with_changes({"server.max_json_bytes": 2000})
    limit = settings.server.max_json_bytes
    long = json.dumps({"inputs": [], "id": "a" * 2000}).encode()
    with pytest.raises(JsonTooLarge):
        RequestDecoder("m", signature("FP32"), limit).query(long, None)
    with pytest.raises(JsonTooLarge):
        RequestDecoder("m", signature("FP32"), limit).query(long, len(long))
    with pytest.raises(JsonTooLarge):
        rest_codec.request(long, limit)
    with pytest.raises(RequestError, match=r"2000 bytes \(server.max_json_bytes\)"):
        queries.predict_fields(long, limit)
    with pytest.raises(RequestError, match="2000 bytes"):
        queries.update(long, "integers", limit)
    with pytest.raises(JsonTooLarge):
        extensions.config_parameter({"config": long.decode()}, limit)


# Texts of errors


@pytest.mark.parametrize(
    "value",
    ["a" * 10**6, "\0" * 10**6, [["a"] * 1000] * 1000, {str(n): n for n in range(10**5)}, 10**4000],
)
def test_what_was_sent_is_shown_short(value):
    """In one line, whatever it is."""
    assert len(short_repr(value)) < 400
    assert "\n" not in short_repr(value)


def test_small_values_are_shown_as_they_are():
    """As Python writes them."""
    for value in (None, True, 5, 2.5, "a'b", [1, [2, "x"]], {"a": [1]}):
        assert short_repr(value) == repr(value)


def test_names_of_megabytes_are_cut_and_not_compared():
    """To look for the nearest name of a long one would take seconds."""
    long = "ab cd" * 10**6
    assert nearest(long, ["echo"]) == ""
    for error in (UnknownModel(long, ("echo",)), UnknownModel("echo", ("1",), long)):
        assert len(str(error)) < 500
    assert "did you mean 'echo'" in str(UnknownModel("ecko", ("echo",)))


# Protobuf


@pytest.mark.parametrize("size", [1 << 17, 1 << 24])
def test_fields_are_counted_before_a_message_is_made(size):
    """In all messages within one another; what is packed into bytes is one field."""
    unit = b"\x32\x03\x0a\x01y"
    few = unit * 20
    raw = b"\x3a" + wire_length(size) + bytes(size)
    assert len(messages.parse(messages.ModelInferRequest, few + raw).outputs) == 20
    if size > MAX_VALUES * len(unit):
        with pytest.raises(InvalidRequest, match="more than 65536 fields"):
            messages.parse(messages.ModelInferRequest, unit * (size // len(unit)))


def wire_length(value):
    """A varint."""
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def test_a_budget_is_spent_once():
    """It is that of all parts of a request together."""
    budget = ParseBudget(10, "letters")
    budget.spend(6)
    budget.spend(4)
    with pytest.raises(InvalidRequest, match="more than 10 letters; send less per request"):
        budget.spend(1)


def test_elements_of_all_tensors_count_together():
    """Two inputs of 40,000 texts each are more than one request may have."""
    specs = tuple(TensorSpec(name=name, datatype="BYTES", shape=(-1,)) for name in "ab")
    requests = RequestDecoder("m", Signature(inputs=specs, outputs=()))

    def asked(count):
        items = [
            {
                "name": n,
                "shape": [count],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": 4 * count},
            }
            for n in "ab"
        ]
        head = json.dumps({"inputs": items}).encode()
        return requests.query(head + bytes(8 * count), len(head))

    assert asked(30_000).items == 30_000
    with pytest.raises(InvalidRequest, match="more than 65536 elements of BYTES"):
        asked(40_000)


def test_the_signature_is_looked_at_before_the_elements():
    """A tensor that the model does not take is refused for that, and not for what is in it."""
    corpus = next(one for one in CORPORA if one.label == "oip binary: texts for a model of numbers")
    body = corpus.body(1 << 22)
    with pytest.raises(InvalidRequest, match="takes FP32"):
        corpus.read(body)
    assert body[header_bytes(body) :] == bytes(len(body) - header_bytes(body))


def test_rows_of_the_same_are_told_from_uneven_ones():
    """The shape of sixteen megabytes of rows is told from brackets and commas alone."""
    body = b'{"instances":[' + b"[1]," * 2**22 + b"[1]]}"
    model = Signature(
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 1)),), outputs=IMAGES.outputs
    )
    assert rest_codec.TensorFlowRestCodec("m", "1", model).large_query(body).items == 2**22 + 1
    assert (
        rest_codec.TensorFlowRestCodec("m", "1", model).large_query(
            body.replace(b"1]]}", b"1,2]]}")
        )
        is None
    )
    assert np.prod((2**22 + 1, 1)) > MAX_NUMBERS
