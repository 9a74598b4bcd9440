"""Requests that are much work for few bytes, for every reader of requests, in any size.

Each corpus makes a body of about so many bytes that a careless reader would walk through piece by piece: many of
the smallest values, names of megabytes, lists that are wrong at their end. Readers must say what is wrong with
them, or read them, at the cost of passing over their bytes. Import `CORPORA`; `Corpus.body` makes one, `read`
gives it to its reader without a server, and `request` says how to send it to one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from serving.api.clipper import queries
from serving.api.grpc import messages
from serving.api.grpc.codec import GrpcCodec
from serving.api.open_inference.request_decoder import RequestDecoder
from serving.api.parsing import proto_fields as fields
from serving.api.parsing import varints
from serving.api.parsing.bounded_json import depth
from serving.api.tensorflow import grpc_codec as grpc_tfs
from serving.api.tensorflow import rest_codec
from serving.api.triton import extensions
from serving.values import Signature, TensorSpec

MODEL = "echo"
"""The model that messages of gRPC name, which has no path."""


def signature(datatype: str) -> Signature:
    """A model with one input and one output of a free length."""
    return Signature(
        inputs=(TensorSpec(name="x", datatype=datatype, shape=(-1,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1,)),),
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A kind of request."""

    name: str
    reader: str
    """A key of `READERS`."""
    make: Callable[[int], bytes]
    """A body of about so many bytes."""
    datatype: str = "FP32"
    """Of the model's input."""

    @property
    def label(self) -> str:
        """What it is, for people."""
        return f"{self.reader}: {self.name}"

    def body(self, size: int) -> bytes:
        """A body of about so many bytes."""
        return self.make(size)

    def read(self, body: bytes) -> object:
        """What its reader makes of a body; raises ServingError."""
        return READERS[self.reader](body, signature(self.datatype))

    def request(self, body: bytes) -> tuple[str, dict[str, str]]:
        """Path of the query port and fields; of a gRPC call its full method, and none."""
        fields_of = {}
        if self.reader == "oip binary":
            fields_of["Inference-Header-Content-Length"] = str(header_bytes(body))
        return PATHS[self.reader], fields_of


PATHS = {
    "oip": f"/v2/models/{MODEL}/infer",
    "oip binary": f"/v2/models/{MODEL}/infer",
    "triton load": f"/v2/repository/models/{MODEL}/load",
    "tfs predict": f"/v1/models/{MODEL}:predict",
    "tfs classify": f"/v1/models/{MODEL}:classify",
    "clipper integers": "/app/predict",
    "clipper doubles": "/app/predict",
    "clipper strings": "/app/predict",
    "grpc oip": "/inference.GRPCInferenceService/ModelInfer",
    "grpc oip index": "/inference.GRPCInferenceService/RepositoryIndex",
    "grpc tfs predict": "/tensorflow.serving.PredictionService/Predict",
    "grpc tfs classify": "/tensorflow.serving.PredictionService/Classify",
}
"""Where a reader's requests go."""


def header_bytes(body: bytes) -> int:
    """Of the JSON part of a binary request of these corpora, which is the first line."""
    return body.index(b"\n") + 1


# Readers


def _oip(body: bytes, model: Signature) -> object:
    return RequestDecoder(MODEL, model).query(body, None)


def _oip_binary(body: bytes, model: Signature) -> object:
    return RequestDecoder(MODEL, model).query(body, header_bytes(body))


def _tfs(method: rest_codec.Method) -> Callable[[bytes, Signature], object]:
    def read(body: bytes, model: Signature) -> object:
        codec = rest_codec.TensorFlowRestCodec(MODEL, "1", model)
        large = codec.large_query(body) if method == "predict" else None
        return large or codec.query(rest_codec.request(body), method)

    return read


def _clipper(kind: str) -> Callable[[bytes, Signature], object]:
    def read(body: bytes, model: Signature) -> object:
        asked = queries.prediction(queries.predict_fields(body), kind)
        return [given.query(model) for given in asked.inputs]

    return read


def _grpc_oip(body: bytes, model: Signature) -> object:
    request = messages.parse(messages.ModelInferRequest, body)
    return GrpcCodec(MODEL, "1", model).query(request)


def _grpc_tfs(body: bytes, model: Signature, method: rest_codec.Method) -> object:
    request = grpc_tfs.decode_request(body, method)
    return grpc_tfs.TensorFlowGrpcCodec(MODEL, "1", model).query(request, method, None)


READERS: dict[str, Callable[[bytes, Signature], object]] = {
    "oip": _oip,
    "oip binary": _oip_binary,
    "triton load": lambda body, _: extensions.load_config(body),
    "tfs predict": _tfs("predict"),
    "tfs classify": _tfs("classify"),
    "clipper integers": _clipper("integers"),
    "clipper doubles": _clipper("doubles"),
    "clipper strings": _clipper("strings"),
    "grpc oip": _grpc_oip,
    "grpc oip index": lambda body, _: messages.parse(messages.methods()["RepositoryIndex"], body),
    "grpc tfs predict": lambda body, model: _grpc_tfs(body, model, "predict"),
    "grpc tfs classify": lambda body, model: _grpc_tfs(body, model, "classify"),
    "depth": lambda body, _: depth(body),
}
"""What reads the requests of a protocol, up to the query that it makes of them."""


# Bodies


def many(start: bytes, unit: bytes, end: bytes) -> Callable[[int], bytes]:
    """Something as often as it fits between a start and an end."""

    def make(size: int) -> bytes:
        return start + unit * max(1, (size - len(start) - len(end)) // len(unit)) + end

    return make


def counted(start: bytes, unit: bytes, end: bytes, more: int = 0) -> Callable[[int], bytes]:
    """The same, with `%d` in the start for how often it is there."""

    def make(size: int) -> bytes:
        count = max(1, (size - len(start) - len(end)) // len(unit))
        return start % (count + more) + unit * count + end

    return make


def message(unit: bytes, start: bytes = b"") -> Callable[[int], bytes]:
    """A ModelInferRequest that names the model, with a field as often as it fits."""
    return many(fields.string(1, MODEL) + start, unit, b"")


def within(number: int, unit: bytes, start: bytes = b"") -> Callable[[int], bytes]:
    """The same with one field that is a message of many."""

    def make(size: int) -> bytes:
        return fields.string(1, MODEL) + fields.content(number, many(start, unit, b"")(size))

    return make


def _input(datatype: str, shape: bytes, rest: bytes = b"") -> bytes:
    return fields.string(1, "x") + fields.string(2, datatype) + fields.content(3, shape) + rest


def _typed(field: int, unit: bytes) -> Callable[[int], bytes]:
    """An input with packed whole numbers, as often as they fit."""

    def make(size: int) -> bytes:
        packed = many(b"", unit, b"")(size)
        contents = fields.content(field, packed)
        given = _input("UINT32", varints.one(len(packed) // len(unit)), fields.content(5, contents))
        return fields.string(1, MODEL) + fields.content(5, given)

    return make


def _raw_texts(size: int) -> bytes:
    elements = size // 4
    given = fields.content(5, _input("BYTES", varints.one(elements)))
    return fields.string(1, MODEL) + given + fields.content(7, bytes(4 * elements))


def _binary(datatype: str) -> Callable[[int], bytes]:
    """Texts of no letters as a binary tensor."""

    def make(size: int) -> bytes:
        elements = max(1, size // 4)
        item: dict[str, Any] = {"name": "x", "shape": [elements], "datatype": datatype}
        item["parameters"] = {"binary_data_size": 4 * elements}
        return json.dumps({"inputs": [item]}).encode() + b"\n" + bytes(4 * elements)

    return make


def _proto(dtype: int, unit: bytes, shape: int = 1) -> Callable[[int], bytes]:
    """A PredictRequest with a TensorProto that has a field as often as it fits."""

    def make(size: int) -> bytes:
        dimension = fields.content(2, fields.content(2, fields.number(1, shape)))
        tensor = fields.number(1, dtype) + dimension + many(b"", unit, b"")(size)
        spec = fields.content(1, fields.string(1, MODEL))
        return spec + fields.map_entry(2, "x", tensor)

    return make


def _packed_proto(unit: bytes) -> Callable[[int], bytes]:
    """A PredictRequest with a tensor of packed whole numbers."""

    def make(size: int) -> bytes:
        packed = many(b"", unit, b"")(size)
        count = len(packed) // len(unit)
        return _proto(3, fields.content(7, packed), shape=count)(len(packed))

    return make


def _examples(unit: bytes) -> Callable[[int], bytes]:
    """A ClassificationRequest with a list of examples that has a field as often as it fits."""

    def make(size: int) -> bytes:
        spec = fields.content(1, fields.string(1, MODEL))
        return spec + fields.content(2, fields.content(1, many(b"", unit, b"")(size)))

    return make


def _packed_feature(kind: int, unit: bytes) -> Callable[[int], bytes]:
    """A ClassificationRequest with one feature of packed numbers."""

    def make(size: int) -> bytes:
        values = fields.content(1, many(b"", unit, b"")(size))
        feature = fields.map_entry(1, "x", fields.content(kind, values))
        return _examples(fields.content(1, fields.content(1, feature)))(size)

    return make


_X = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],'
_DATA = b'{"inputs":[{"name":"x","shape":[%d],"datatype":"FP32","data":['
_TEXTS = _DATA.replace(b"FP32", b"BYTES")
_FEATURE = fields.content(1, fields.content(1, b"a") + fields.content(2, b"\x1a\x03\x0a\x01\x01"))

CORPORA: tuple[Corpus, ...] = (
    Corpus(
        "many inputs",
        "oip",
        many(b'{"inputs":[', b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]},', b"{}]}"),
    ),
    Corpus("inputs of nothing", "oip", many(b'{"inputs":[', b"{},", b"{}]}")),
    Corpus("empty texts", "oip", counted(_TEXTS, b'"",', b'""]}]}', 1), "BYTES"),
    Corpus("texts for a model of numbers", "oip", counted(_TEXTS, b'"",', b'""]}]}', 1)),
    Corpus("texts with escapes", "oip", counted(_TEXTS, rb'"\"\\",', b'""]}]}', 1), "BYTES"),
    Corpus("one text of commas", "oip", many(_TEXTS % 1 + b'"', b",[", b'"]}]}'), "BYTES"),
    Corpus("one text of escapes", "oip", many(_TEXTS % 1 + b'"', rb"\n\"", b'"]}]}'), "BYTES"),
    Corpus("numbers, then null", "oip", counted(_DATA, b"1,", b"null]}]}", 1)),
    Corpus("numbers, then a text", "oip", counted(_DATA, b"1,", b'"x"]}]}', 1)),
    Corpus("empty arrays", "oip", counted(_DATA, b"[],", b"[]]}]}", 1)),
    Corpus("empty objects", "oip", counted(_DATA, b"{},", b"{}]}]}", 1)),
    Corpus("arrays in one another", "oip", many(_DATA % 1, b"[", b"")),
    Corpus("objects in one another", "oip", many(b"", b'{"inputs":', b"")),
    Corpus(
        "a shape of many dimensions",
        "oip",
        many(b'{"inputs":[{"name":"x","datatype":"FP32","data":[1],"shape":[', b"1,", b"1]}]}"),
    ),
    Corpus(
        "a shape of large dimensions",
        "oip",
        many(
            b'{"inputs":[{"name":"x","datatype":"FP32","data":[1],"shape":[',
            b"1099511627775,",
            b"1]}]}",
        ),
    ),
    Corpus(
        "a long input name",
        "oip",
        many(b'{"inputs":[{"shape":[1],"datatype":"FP32","data":[1],"name":"', b"ab c", b'"}]}'),
    ),
    Corpus(
        "a long datatype",
        "oip",
        many(b'{"inputs":[{"shape":[1],"name":"x","data":[1],"datatype":"', b"FP32", b'"}]}'),
    ),
    Corpus("a long output name", "oip", many(_X + b'"outputs":[{"name":"', b"ab c", b'"}]}')),
    Corpus("a name that is a list", "oip", many(_X + b'"outputs":[{"name":[', b"1,", b"1]}]}")),
    Corpus(
        "the same output", "oip", many(_X + b'"outputs":[', b'{"name":"y"},', b'{"name":"y"}]}')
    ),
    Corpus("an id that is a list", "oip", many(_X + b'"id":[', b"[],", b"[]]}")),
    Corpus("parameters that are a list", "oip", many(_X + b'"parameters":[', b"1,", b"1]}")),
    Corpus(
        "a timeout that is a list", "oip", many(_X + b'"parameters":{"timeout":[', b"1,", b"1]}}")
    ),
    Corpus("members named data", "oip", many(_X[:-1], b',"data":[]', b"}")),
    Corpus("data that is no array", "oip", many(b"{", b'"data"', b"}")),
    Corpus("data behind blanks", "oip", many(b'{"data"', b" ", b":[]}")),
    Corpus("braces behind data", "oip", many(b'{"data":[', b"}", b'"data":[')),
    Corpus("texts that do not end", "oip", many(_X, rb'"\\', b"")),
    Corpus("quotes", "oip", many(_X, b'"', b"")),
    Corpus("blanks", "oip", many(b"", b" ", b"")),
    Corpus("zeros", "oip", many(b"", b"\0", b"")),
    Corpus("a number of many digits", "oip", many(_DATA % 1, b"1", b"]}]}")),
    Corpus(
        "a fraction of many digits", "oip", many(_X + b'"parameters":{"timeout":0.', b"1", b"}}")
    ),
    Corpus(
        "a JSON part of many inputs",
        "oip binary",
        many(
            b'{"inputs":[',
            b'{"name":"x","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}},',
            b"{}]}\n",
        ),
    ),
    Corpus("a JSON part with a long id", "oip binary", many(b'{"id":"', b"a", b'","inputs":[]}\n')),
    Corpus("empty texts", "oip binary", _binary("BYTES"), "BYTES"),
    Corpus("texts for a model of numbers", "oip binary", _binary("BYTES")),
    Corpus("numbers for a model of texts", "oip binary", _binary("FP32"), "BYTES"),
    Corpus(
        "parameters of many members", "triton load", many(b'{"parameters":{', b'"a":1,', b'"b":1}}')
    ),
    Corpus(
        "a configuration of many objects",
        "triton load",
        many(b'{"parameters":{"config":"[', b"{},", b'{}]"}}'),
    ),
    Corpus("numbers, then a text", "tfs predict", many(b'{"instances":[', b"1,", b'"x"]}')),
    Corpus("columns of numbers, then a text", "tfs predict", many(b'{"inputs":[', b"1,", b'"x"]}')),
    Corpus("numbers, then NaN", "tfs predict", many(b'{"instances":[', b"1,", b"NaN]}")),
    Corpus("uneven rows", "tfs predict", many(b'{"instances":[', b"[[1]],", b"[1]]}")),
    Corpus("uneven rows of nothing", "tfs predict", many(b'{"instances":[', b"[[]],", b"[[1]]]}")),
    Corpus("empty rows", "tfs predict", many(b'{"instances":[', b"[],", b"[]]}")),
    Corpus("rows that open", "tfs predict", many(b'{"instances":[', b"[", b"]}")),
    Corpus("rows of one number", "tfs predict", many(b'{"instances":[', b"[1],", b"[1]]}")),
    Corpus("empty texts", "tfs predict", many(b'{"instances":[', b'"",', b'""]}'), "BYTES"),
    Corpus(
        "texts in base64",
        "tfs predict",
        many(b'{"instances":[', b'{"b64":""},', b'{"b64":""}]}'),
        "BYTES",
    ),
    Corpus(
        "one text in base64",
        "tfs predict",
        many(b'{"instances":[{"b64":"', b"AAAA", b'"}]}'),
        "BYTES",
    ),
    Corpus(
        "base64 with blanks",
        "tfs predict",
        many(b'{"instances":[{"b64":"', b"A ", b'"}]}'),
        "BYTES",
    ),
    Corpus("named rows", "tfs predict", many(b'{"instances":[', b'{"x":1},', b'{"x":"a"}]}')),
    Corpus(
        "a signature of many values", "tfs predict", many(b'{"signature_name":[', b"1,", b"1]}")
    ),
    Corpus("many members", "tfs predict", many(b"{", b'"a":1,', b'"instances":[]}')),
    Corpus("quotes", "tfs predict", many(b'{"instances":[', b'"', b"")),
    Corpus(
        "examples of one feature", "tfs classify", many(b'{"examples":[', b'{"x":1},', b'{"x":1}]}')
    ),
    Corpus("examples of nothing", "tfs classify", many(b'{"examples":[', b"{},", b"{}]}")),
    Corpus(
        "an example of many values", "tfs classify", many(b'{"examples":[{"x":[', b"1,", b"1]}]}")
    ),
    Corpus(
        "an example of one long text", "tfs classify", many(b'{"examples":[{"x":"', b"a", b'"}]}')
    ),
    Corpus(
        "a feature with a long name", "tfs classify", many(b'{"examples":[{"', b"a", b'":null}]}')
    ),
    Corpus("integers", "clipper integers", many(b'{"input":[', b"1,", b"1]}")),
    Corpus("integers, then a text", "clipper integers", many(b'{"input":[', b"1,", b'"x"]}')),
    Corpus("a batch of nothing", "clipper integers", many(b'{"input_batch":[', b"[],", b"[]]}")),
    Corpus("floats", "clipper doubles", many(b'{"input":[', b"0.1,", b"1]}")),
    Corpus("one text", "clipper strings", many(b'{"input":"', b"a", b'"}'), "BYTES"),
    Corpus(
        "a batch of texts", "clipper strings", many(b'{"input_batch":[', b'"",', b'""]}'), "BYTES"
    ),
    Corpus(
        "a long version", "clipper strings", many(b'{"input":"a","version":"', b"1", b'"}'), "BYTES"
    ),
    Corpus("texts that do not end", "depth", many(b"[" * 200, rb'"\\', b"")),
    Corpus("quotes", "depth", many(b"[" * 200, b'"', b"")),
    Corpus("escapes", "depth", many(b"[" * 200, b'"\\', b"")),
    Corpus("inputs", "grpc oip", message(fields.content(5, _input("FP32", b"\0")))),
    Corpus("outputs", "grpc oip", message(fields.content(6, fields.string(1, "y")))),
    Corpus("parameters", "grpc oip", message(fields.map_entry(4, "a", b""))),
    Corpus("raw contents of nothing", "grpc oip", message(fields.content(7, b""))),
    Corpus("names", "grpc oip", message(fields.string(1, "a"))),
    Corpus("unknown fields", "grpc oip", message(b"\x78\x00")),
    Corpus(
        "a long output name",
        "grpc oip",
        lambda size: (
            fields.string(1, MODEL) + fields.content(6, fields.string(1, "ab c" * (size // 4)))
        ),
    ),
    Corpus(
        "a long input name",
        "grpc oip",
        lambda size: (
            fields.string(1, MODEL) + fields.content(5, fields.string(1, "ab c" * (size // 4)))
        ),
    ),
    Corpus("an input of fields", "grpc oip", within(5, b"\x78\x00")),
    Corpus(
        "typed texts",
        "grpc oip",
        lambda size: (
            fields.string(1, MODEL)
            + fields.content(
                5,
                _input(
                    "BYTES", varints.one(size // 2), fields.content(5, b"\x42\x00" * (size // 2))
                ),
            )
        ),
        "BYTES",
    ),
    Corpus("raw texts", "grpc oip", _raw_texts, "BYTES"),
    Corpus("raw texts for a model of numbers", "grpc oip", _raw_texts),
    Corpus(
        "a shape of many dimensions",
        "grpc oip",
        lambda size: fields.string(1, MODEL) + fields.content(5, _input("FP32", b"\x01" * size)),
    ),
    Corpus("packed numbers of a byte", "grpc oip", _typed(4, b"\x01"), "UINT32"),
    Corpus("packed numbers of two bytes", "grpc oip", _typed(4, b"\x80\x01"), "UINT32"),
    Corpus("unknown fields", "grpc oip index", many(b"", b"\x78\x00", b"")),
    Corpus("fields", "grpc tfs predict", many(b"", b"\x40\x00", b"")),
    Corpus("inputs", "grpc tfs predict", many(b"", fields.map_entry(2, "x", b""), b"")),
    Corpus("output names", "grpc tfs predict", many(b"", fields.string(3, "y"), b"")),
    Corpus("texts", "grpc tfs predict", _proto(7, b"\x42\x00"), "BYTES"),
    Corpus("numbers one by one", "grpc tfs predict", _proto(3, b"\x38\x01"), "INT32"),
    Corpus("packed numbers of two bytes", "grpc tfs predict", _packed_proto(b"\x80\x01"), "INT32"),
    Corpus("examples", "grpc tfs classify", _examples(b"\x0a\x00")),
    Corpus(
        "features", "grpc tfs classify", _examples(fields.content(1, fields.content(1, _FEATURE)))
    ),
    Corpus("packed floats of a feature", "grpc tfs classify", _packed_feature(2, bytes(4))),
    Corpus("packed integers of a feature", "grpc tfs classify", _packed_feature(3, b"\x01")),
)
"""All of them."""
