"""Requests of the Open Inference Protocol in binary form, read back by the protocol's own rules."""

import json
import struct

import numpy as np

from serving.tensors.arrays import DTYPES


def parsed(requests):
    """Inputs by name of each request: datatype, array."""
    length = int(requests.headers["Inference-Header-Content-Length"])
    for body in requests.requests:
        header, rest = json.loads(body[:length]), body[length:]
        assert header["parameters"] == {"binary_data_output": True}
        inputs = {}
        for item in header["inputs"]:
            size = item["parameters"]["binary_data_size"]
            raw, rest = rest[:size], rest[size:]
            if item["datatype"] == "BYTES":
                data = []
                while raw:
                    (count,) = struct.unpack_from("<I", raw)
                    data.append(raw[4 : 4 + count])
                    raw = raw[4 + count :]
                array = np.array(data, dtype=object).reshape(item["shape"])
            else:
                array = np.frombuffer(raw, DTYPES[item["datatype"]]).reshape(item["shape"])
            inputs[item["name"]] = (item["datatype"], array)
        assert not rest, "bytes that belong to no tensor"
        yield inputs
