"""The examples of docs/protocol-open-inference.md run as they stand."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "protocol-open-inference.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def ports():
    command = [sys.executable, "-m", "serving", "--model", "echo", "--set", "server.grpc_port=0"]
    with subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0", "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            facts = json.loads(process.stdout.readline())
            yield {"8000": str(facts["port"]), "8001": str(facts["grpc_port"])}
        finally:
            process.kill()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example(ports, number):
    """It ends without an error, on the ports that were free."""
    code = re.sub(
        r"localhost:(800[01])", lambda port: f"127.0.0.1:{ports[port[1]]}", EXAMPLES[number]
    )
    assert code != EXAMPLES[number]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
