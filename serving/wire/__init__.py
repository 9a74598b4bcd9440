"""Replica wire, version 1: the messages between the gateway and one replica.

docs/replica-wire.md describes the format; change both together. Payloads are not copied: functions
return views of their arguments. Times are nanoseconds of CLOCK_MONOTONIC; 0 means "open".

WARNING: the numbers of `MessageType`, `Encoding` and `ActionStatus`, and the order of
`serving.values.ITEM_BYTES`, are on the wire: never renumber them, only add new ones.
"""

from serving.wire.batches import (
    ActionStatus,
    Encoding,
    InferEntry,
    InferMessage,
    ReplicaTimes,
    ResultMessage,
    infer_head,
    parse_infer,
    parse_result,
    result_head,
)
from serving.wire.control import (
    FEATURES,
    HelloMessage,
    LoadMessage,
    MoveMessage,
    UnloadMessage,
    encode_hello,
    encode_load,
    encode_loaded,
    encode_move,
    encode_unload,
    encode_unloaded,
    parse_hello,
    parse_load,
    parse_loaded,
    parse_move,
    parse_unload,
    parse_unloaded,
)
from serving.wire.frames import (
    MAX_CACHED_LAYOUTS,
    Layout,
    TensorLayout,
    decode_frame,
    describe,
    encode_descriptor,
    split_frame,
)
from serving.wire.stream import (
    DEFAULT_MAX_MESSAGE_BYTES,
    HEAD,
    MAX_RESULT_BYTES,
    MessageParser,
    MessageType,
    WireError,
    parse_head,
)
