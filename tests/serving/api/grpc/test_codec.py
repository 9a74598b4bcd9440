"""Inference requests and answers as protobuf: every rule of the protocol, and any bytes."""

import contextlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as client

from serving import wire
from serving.api.grpc import messages
from serving.api.grpc.codec import GrpcCodec
from serving.api.grpc.contents import FIELDS
from serving.api.grpc.parse_cache import ParseCache, infer_request_of
from serving.errors import InferenceFailed, InvalidRequest
from serving.tensors.json_tensors import NUMPY, elements
from serving.values import ITEM_BYTES, Signature, Tensor, TensorSpec


def signature(*inputs, outputs=None):
    specs = tuple(TensorSpec(name=n, datatype=d, shape=s) for n, d, s in inputs)
    return Signature(inputs=specs, outputs=outputs or specs)


ONE = signature(("x", "FP32", (-1, 2)))


def request(*inputs, raw=None, parameters=None, outputs=(), **more):
    """A ModelInferRequest of Triton's client; inputs: (name, datatype, shape, contents or None)."""
    made = client.ModelInferRequest(model_name="m", **more)
    for name, datatype, shape, contents in inputs:
        given_input = made.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in (contents or {}).items():
            getattr(given_input.contents, field).extend(values)
    made.raw_input_contents.extend(raw or [])
    for name, (field, value) in (parameters or {}).items():
        setattr(made.parameters[name], field, value)
    for output in outputs:
        made.outputs.add(name=output)
    return made


def query(made, model=ONE):
    parsed = messages.parse(messages.ModelInferRequest, made.SerializeToString())
    return GrpcCodec("m", "1", model).query(parsed)


def tensors(given_query):
    frame = b"".join(given_query.frame)
    assert len(frame) == given_query.frame_bytes
    return [
        (name, datatype, shape, bytes(data))
        for name, datatype, shape, data in wire.decode_frame(memoryview(frame))
    ]


RAW = struct.pack("<4f", 1, 2, 3, 4)


def test_raw_contents():
    """The bytes go to the replica as they came, the answer is wanted in the same form."""
    found = query(request(("x", "FP32", [2, 2], None), raw=[RAW], id="7"))
    assert tensors(found) == [("x", "FP32", (2, 2), RAW)]
    assert found.items == 2
    assert found.wanted == ("7", None, True, ())
    assert found.timeout_s is None
    assert found.priority == 0


def test_typed_contents():
    """The same tensor in the field of its type."""
    found = query(request(("x", "FP32", [2, 2], {"fp32_contents": [1, 2, 3, 4]})))
    assert tensors(found) == [("x", "FP32", (2, 2), RAW)]
    assert found.wanted == ("", None, False, ())


VALUES = {
    "BOOL": st.booleans(),
    **{
        datatype: st.integers(
            int(np.iinfo(NUMPY[datatype]).min), int(np.iinfo(NUMPY[datatype]).max)
        )
        for datatype in FIELDS
        if "INT" in datatype
    },
    "FP32": st.floats(width=32),
    "FP64": st.floats(),
    "BYTES": st.binary(max_size=20),
}


def raw_bytes(datatype, values):
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return np.array(values, dtype=NUMPY[datatype]).tobytes()


@given(st.data(), st.sampled_from(sorted(FIELDS)))
def test_typed_and_raw_contents_mean_the_same(data, datatype):
    """For every datatype: typed contents as a client packs them are the raw bytes, and so are the answers."""
    values = data.draw(st.lists(VALUES[datatype], max_size=20))
    model = signature(("x", datatype, (-1,)))
    typed = query(request(("x", datatype, [len(values)], {FIELDS[datatype]: values})), model)
    raw = raw_bytes(datatype, values)
    assert tensors(typed)[0][3] == raw
    if values:
        raw_query = query(request(("x", datatype, [len(values)], None), raw=[raw]), model)
        assert tensors(raw_query) == tensors(typed)
    codec = GrpcCodec("m", "1", model)
    frame = memoryview(b"".join(typed.frame))
    answer = client.ModelInferResponse.FromString(
        b"".join(codec.encode_response(frame, typed.wanted))
    )
    got = list(getattr(answer.outputs[0].contents, FIELDS[datatype]))
    assert raw_bytes(datatype, got) == raw
    wanted = typed.wanted._replace(raw=True)
    answer = client.ModelInferResponse.FromString(b"".join(codec.encode_response(frame, wanted)))
    assert list(answer.raw_output_contents) == [raw]


def test_contents_in_several_pieces():
    """A packed field may come in pieces, which mean the whole."""
    made = request(("x", "FP32", [1, 2], {"fp32_contents": [1]})).inputs[0]
    piece = client.ModelInferRequest.InferInputTensor()
    piece.contents.fp32_contents.append(2)
    both = made.SerializeToString() + piece.SerializeToString()
    whole = b"\x0a\x01m\x2a" + bytes([len(both)]) + both
    found = GrpcCodec("m", "1", ONE).query(messages.parse(messages.ModelInferRequest, whole))
    assert tensors(found)[0][3] == struct.pack("<2f", 1, 2)


FP16 = signature(("h", "FP16", (-1,)))


def test_fp16_is_raw_alone():
    """It has no typed form: in raw contents it goes, typed it is refused, and answers with it are raw."""
    found = query(request(("h", "FP16", [2], None), raw=[b"abcd"]), FP16)
    assert tensors(found)[0][3] == b"abcd"
    with pytest.raises(InvalidRequest, match="raw_input_contents"):
        query(request(("h", "FP16", [2], {"fp32_contents": [1, 2]})), FP16)
    frame = memoryview(b"".join(found.frame))
    typed = found.wanted._replace(raw=False)
    answer = b"".join(GrpcCodec("m", "1", FP16).encode_response(frame, typed))
    assert client.ModelInferResponse.FromString(answer).raw_output_contents == [b"abcd"]


def param(field, value):
    return {"parameters": {"timeout": (field, value)}}


@pytest.mark.parametrize(
    ("parameters", "timeout_s", "priority"),
    [
        ({"timeout": ("int64_param", 2500)}, 0.0025, 0),
        ({"timeout": ("uint64_param", 2500)}, 0.0025, 0),
        ({"timeout": ("double_param", 2500.0)}, 0.0025, 0),
        ({"priority": ("uint64_param", 3)}, None, 3),
        ({"priority": ("int64_param", 0), "sequence_id": ("int64_param", 4)}, None, 0),
    ],
)
def test_parameters(parameters, timeout_s, priority):
    """Time limit and priority are taken from the parameters, of whatever type of number."""
    found = query(request(("x", "FP32", [2, 2], None), raw=[RAW], parameters=parameters))
    assert found.timeout_s == (pytest.approx(timeout_s) if timeout_s else None)
    assert found.priority == priority


TYPED = {"fp32_contents": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (request(), "inputs are none"),
        (request(("y", "FP32", [2, 2], None), raw=[RAW]), "takes exactly x"),
        (request(("x", "FP32", [2, 2], None), ("x", "FP32", [2, 2], None), raw=[RAW, RAW]), "takes exactly x"),
        (request(("x", "FP64", [1, 2], None), raw=[RAW]), "takes FP32"),
        (request(("x", "BF17", [1, 2], None), raw=[RAW]), "expected one of"),
        (request(("x", "", [1, 2], None), raw=[RAW]), "expected one of"),
        (request(("x", "FP32", [4], None), raw=[RAW]), r"takes \[-1, 2\]"),
        (request(("x", "FP32", [1, 4], None), raw=[RAW]), r"takes \[-1, 2\]"),
        (request(("x", "FP32", [-2, -2], None), raw=[RAW]), "invalid shape"),
        (request(("x", "FP32", [2**62, 2**62], None), raw=[RAW]), "invalid shape"),
        (request(("x", "FP32", [1] * 40, None), raw=[RAW]), "invalid shape"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW[:-1]]), "unexpected size"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW + b"\0"]), "unexpected size"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW, RAW]), "2 entries for 1 inputs"),
        (request(("x", "FP32", [2, 2], TYPED), raw=[RAW]), "one of the two"),
        (request(("x", "FP32", [2, 2], None)), "0 elements"),
        (request(("x", "FP32", [2, 2], {"fp32_contents": [1, 2, 3]})), "3 elements"),
        (request(("x", "FP32", [2, 2], {"fp64_contents": [1, 2, 3, 4]})), "takes only fp32_contents"),
        (request(("x", "FP32", [2, 2], {**TYPED, "bytes_contents": [b""]})), "takes only fp32_contents"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], outputs=["z"]), "not one of model"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], outputs=["x", "x"]), "twice"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], **param("int64_param", 0)), "timeout"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], **param("int64_param", -5)), "timeout"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], **param("double_param", math.nan)), "timeout"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], **param("string_param", "5")), "timeout"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], **param("bool_param", True)), "timeout"),
        (request(("x", "FP32", [2, 2], None), raw=[RAW], parameters={"priority": ("int64_param", -1)}), "priority"),
    ],
)  # fmt: skip
def test_what_does_not_fit(made, text):
    """It is refused with the input, what was given and what was expected."""
    with pytest.raises(InvalidRequest, match=text):
        query(made)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [("INT8", [128]), ("INT8", [-129]), ("INT16", [2**15]), ("UINT8", [256]), ("UINT16", [2**16])],
)
def test_numbers_out_of_range(datatype, values):
    """The field of a small type can hold more than the type."""
    made = request(("x", datatype, [1], {FIELDS[datatype]: values}))
    with pytest.raises(InvalidRequest, match=r"takes .* contents hold"):
        query(made, signature(("x", datatype, (-1,))))


@pytest.mark.parametrize(
    "raw",
    [b"\x05\0\0\0abc", b"\x01\0\0", b"\x01\0\0\0a\x01\0\0\0b", b"", b"\x01\0\0\0ab"],
)
def test_malformed_bytes_elements(raw):
    """Elements of BYTES are counted, and none ends beyond the data."""
    made = request(("s", "BYTES", [1], None), raw=[raw])
    with pytest.raises(InvalidRequest, match="1 BYTES elements"):
        query(made, signature(("s", "BYTES", (-1,))))


def test_tensors_of_nothing():
    """A tensor without elements is a tensor, raw and typed, and one item."""
    for made in (
        request(("x", "FP32", [0, 2], None), raw=[b""]),
        request(("x", "FP32", [0, 2], None)),
    ):
        assert query(made).items == 1


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_shared_memory_is_refused(where):
    """A tensor that is not in the request cannot be had."""
    made = request(("x", "FP32", [2, 2], None), raw=[RAW], outputs=["x"])
    getattr(made, where)[0].parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(InvalidRequest, match="shared memory"):
        query(made)


def test_classes_instead_of_scores():
    """The outputs of which they are wanted are texts, the others as they were; raw is answered in raw."""
    specs = (
        TensorSpec(name="a", datatype="FP32", shape=(-1, 3)),
        TensorSpec(name="b", datatype="BYTES", shape=(-1,)),
    )
    model = signature(("x", "FP32", (-1, 2)), outputs=specs)
    returned = [
        Tensor("a", "FP32", (2, 3), struct.pack("<6f", 0.25, 2, -1, 0, 0, 5)),
        Tensor("b", "BYTES", (2,), b"\x02\0\0\0hi\x01\0\0\0z"),
    ]
    frame = memoryview(wire.encode_descriptor(returned) + b"".join(one.data for one in returned))
    codec = GrpcCodec("m", "1", model)
    for raw in ([RAW], None):
        contents = None if raw else {"fp32_contents": [1, 2, 3, 4]}
        made = request(("x", "FP32", [2, 2], contents), raw=raw, outputs=["b", "a"])
        made.outputs[1].parameters["classification"].int64_param = 2
        wanted = query(made, model).wanted
        for _ in range(2):
            answer = client.ModelInferResponse.FromString(
                b"".join(codec.encode_response(frame, wanted))
            )
            assert [output.shape for output in answer.outputs] == [[2], [2, 2]]
            found = [list(output.contents.bytes_contents) for output in answer.outputs]
            if raw:
                found = [
                    [
                        one
                        for some in elements(Tensor("", "BYTES", tuple(shape), data))
                        for one in some
                    ]
                    for shape, data in zip(([2], [2, 2]), answer.raw_output_contents, strict=True)
                ]
            best = [b"2.000000:1", b"0.250000:0", b"5.000000:2", b"0.000000:0"]
            assert found == [[b"hi", b"z"], best]


def test_requested_outputs_in_their_order():
    """Outputs come as they were asked for, and no others."""
    specs = (
        TensorSpec(name="a", datatype="FP32", shape=(-1,)),
        TensorSpec(name="b", datatype="INT64", shape=(-1,)),
        TensorSpec(name="c", datatype="BYTES", shape=(-1,)),
    )
    model = signature(("x", "FP32", (-1, 2)), outputs=specs)
    codec = GrpcCodec("m", "1", model)
    returned = [
        Tensor("a", "FP32", (1,), struct.pack("<f", 1)),
        Tensor("b", "INT64", (1,), struct.pack("<q", -5)),
        Tensor("c", "BYTES", (1,), b"\x02\0\0\0hi"),
    ]
    frame = wire.encode_descriptor(returned) + b"".join(tensor.data for tensor in returned)
    made = request(("x", "FP32", [2, 2], None), raw=[RAW], outputs=["c", "a"], id="i")
    wanted = query(made, model).wanted
    answer = client.ModelInferResponse.FromString(
        b"".join(codec.encode_response(memoryview(frame), wanted))
    )
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "i")
    assert [output.name for output in answer.outputs] == ["c", "a"]
    assert list(answer.raw_output_contents) == [b"\x02\0\0\0hi", struct.pack("<f", 1)]
    answer = client.ModelInferResponse.FromString(
        b"".join(codec.encode_response(memoryview(frame), wanted._replace(raw=False)))
    )
    assert answer.outputs[0].contents.bytes_contents == [b"hi"]
    assert not answer.raw_output_contents
    less = wire.encode_descriptor(returned[:1]) + returned[0].data
    with pytest.raises(InferenceFailed, match="no output c"):
        codec.encode_response(memoryview(less), wanted)


@pytest.mark.parametrize("data", [b"\x05\0\0\0ab", b"\x02\0\0\0hi\x02\0\0\0hi"])
def test_malformed_bytes_of_a_model_are_an_error(data):
    """Typed contents hold as many elements as the shape says, whole; a part was sent as a success."""
    specs = (TensorSpec(name="c", datatype="BYTES", shape=(-1,)),)
    model = signature(("x", "FP32", (-1, 2)), outputs=specs)
    codec = GrpcCodec("m", "1", model)
    frame = wire.encode_descriptor([Tensor("c", "BYTES", (1,), data)]) + data
    wanted = query(request(("x", "FP32", [2, 2], None), raw=[RAW]), model).wanted
    with pytest.raises(InferenceFailed, match="does not hold the 1 texts"):
        codec.encode_response(memoryview(frame), wanted._replace(raw=False))


@given(st.data())
def test_a_repeated_request_means_what_it_would_mean_alone(data):
    """Requests that equal remembered ones but for their data are read as if each were the first."""
    model = signature(("x", "UINT8", (-1,)), ("y", "INT16", (-1,)))
    codec, repeats = GrpcCodec("m", "1", model), ParseCache()
    for _ in range(data.draw(st.integers(1, 6))):
        size = data.draw(st.integers(0, 3))
        raw = [
            data.draw(st.binary(min_size=size, max_size=size)),
            data.draw(st.binary(min_size=2 * size, max_size=2 * size)),
        ]
        if data.draw(st.booleans()):
            # The raw contents of one request may look like the structure of another.
            raw[0] = (b"\x3a" + bytes([size * 2]) + raw[0])[:size]
        made = request(
            ("x", "UINT8", [size], None),
            ("y", "INT16", [size], None),
            raw=raw,
            id=data.draw(st.sampled_from(["", "", "i"])),
            parameters=data.draw(st.sampled_from([{}, {"timeout": ("int64_param", 7)}])),
        )
        sent = memoryview(made.SerializeToString())
        alone = codec.query(messages.parse(messages.ModelInferRequest, sent))
        known = repeats.find(sent)
        if known is not None:
            found = infer_request_of(known, sent)
            assert tensors(found) == tensors(alone)
            assert found[1:] == alone[1:]
            assert (known.name, known.version) == ("m", None)
        parsed = messages.parse(messages.ModelInferRequest, sent)
        repeats.add(sent, parsed, model, codec, alone)
        assert (repeats.find(sent) is None) == bool(made.id)


def test_fields_in_another_order_are_not_remembered():
    """Raw contents that do not stand at the end are read each time."""
    made = request(("x", "UINT8", [2], None), raw=[b"ab"])
    sent = memoryview(b"\x3a\x02ab" + request(("x", "UINT8", [2], None)).SerializeToString())
    parsed = messages.parse(messages.ModelInferRequest, sent)
    model = signature(("x", "UINT8", (-1,)))
    codec, repeats = GrpcCodec("m", "1", model), ParseCache()
    found = codec.query(parsed)
    assert tensors(found) == tensors(query(made, model))
    repeats.add(sent, parsed, model, codec, found)
    assert repeats.find(sent) is None


@given(st.binary(max_size=120))
def test_any_bytes_are_a_request_or_refused(data):
    """No message does more than being refused."""
    with contextlib.suppress(InvalidRequest):
        GrpcCodec("m", "1", ONE).query(messages.parse(messages.ModelInferRequest, data))


CONTENTS = st.fixed_dictionaries(
    {},
    optional={
        "bool_contents": st.lists(st.booleans(), max_size=3),
        "int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "uint64_contents": st.lists(st.integers(0, 2**64 - 1), max_size=3),
        "fp32_contents": st.lists(st.floats(width=32), max_size=3),
        "bytes_contents": st.lists(st.binary(max_size=3), max_size=3),
    },
)
INPUTS = st.tuples(
    st.sampled_from(["x", "y", ""]),
    st.sampled_from([*ITEM_BYTES, "BF16", ""]),
    st.lists(st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1), max_size=3),
    CONTENTS,
)


@given(
    st.lists(INPUTS, max_size=3),
    st.lists(st.binary(max_size=12), max_size=3),
    st.sampled_from(sorted(ITEM_BYTES)),
)
def test_any_request_is_a_query_or_refused(inputs, raw, datatype):
    """Whatever a client puts together, a query that comes of it is a frame that fits the model."""
    model = signature(("x", datatype, (-1, -1)))
    try:
        found = query(request(*inputs, raw=raw), model)
    except InvalidRequest:
        return
    (tensor,) = tensors(found)
    assert tensor[:2] == ("x", datatype)
    assert found.items >= 1
