"""Compiles inference.proto of the gRPC protocol; needs `pip install grpcio-tools`.

In: serving/api/grpc/inference.proto. Out: inference.binpb beside it, the same as a
descriptor set, which is what the server loads. `--check` writes nothing and ends with 1 when the two
differ; a test runs it where the compiler is installed.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from grpc_tools import protoc

FOLDER = pathlib.Path(__file__).parent.parent / "serving" / "api" / "grpc"
SOURCE = FOLDER / "inference.proto"
COMPILED = FOLDER / "inference.binpb"


def compiled() -> bytes:
    """The descriptor set of the source."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / COMPILED.name
        status = protoc.main(
            ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={target}", SOURCE.name]
        )
        if status:
            raise SystemExit(status)
        return target.read_bytes()


def main() -> int:
    """Write the compiled messages, or compare them with the source."""
    parser = argparse.ArgumentParser(description="compile inference.proto")
    parser.add_argument("--check", action="store_true", help="end with 1 when it is stale")
    arguments = parser.parse_args()
    data = compiled()
    if not arguments.check:
        COMPILED.write_bytes(data)
        return 0
    if COMPILED.exists() and COMPILED.read_bytes() == data:
        return 0
    sys.stderr.write(f"{COMPILED.name} differs from {SOURCE.name}: run docs/generate_messages.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
