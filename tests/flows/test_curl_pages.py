"""The `curl` lines of the pages run as they stand, one after another, on a server with the models of all of them."""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"
BATCHING, CLIPPER, SELECTION, VERSIONS = (
    (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for page in ("batching", "protocol-clipper", "selection", "versions")
)


def section(text, heading):
    """What stands below a heading."""
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def blocks(text, language=""):
    """The fenced blocks of a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [block for word, block in found if word == language]


def curls(text):
    """Every command that is a `curl`, in the order of the page."""
    joined = "".join(blocks(text)).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith("curl -s ")]


APPLICATION = section(SELECTION, "A running application")
BY_HAND = section(VERSIONS, "By hand")
SERVERS = (
    *re.findall(r"^python -m serving (.*)$", APPLICATION, flags=re.MULTILINE),
    *re.findall(r"`python -m serving ([^`]+)`", BY_HAND),
    *re.findall(r"^With `python -m serving ([^`]+)`:$", BATCHING, flags=re.MULTILINE),
)
"""Options with which the pages start a server."""
SHORT = '"latency_slo_micros": 100000'
assert SHORT in APPLICATION


@pytest.fixture(scope="module", name="ports")
def _ports(tmp_path_factory):
    """One server with the models of all pages: the ports that stand for those of the pages."""
    folder = tmp_path_factory.mktemp("models")
    for block in blocks(APPLICATION, "python"):
        (folder / block.split()[1]).write_text(block)
    assert len(SERVERS) == 3
    words = [*" ".join(SERVERS).split(), "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "serving", *words, "--log-level", "warning"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            facts = json.loads(process.stdout.readline())
            query, admin = str(facts["port"]), str(facts["admin_port"])
            yield {"8000": query, "1337": query, "8002": admin, "1338": admin}
        finally:
            process.kill()


def run(line, ports):
    """What a `curl` line prints; the program itself need not be there.

    Its ports are those of the server, and its objective is one that a busy machine keeps.
    """
    words = shlex.split(line.replace(SHORT, '"latency_slo_micros": 30000000'))[2:]
    method, data, fields, url = None, None, {}, ""
    while words:
        match words.pop(0):
            case "-X":
                method = words.pop(0)
            case "-d":
                data = words.pop(0).encode()
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                fields[name] = value
            case word:
                url = word
    url = re.sub(r"localhost:(\d+)", lambda found: f"http://127.0.0.1:{ports[found[1]]}", url)
    method = method or ("GET" if data is None else "POST")
    request = urllib.request.Request(url, data, fields, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        pytest.fail(f"{line}: {error.code} {error.read().decode()}")


def test_the_application_of_the_page_of_selection(ports):
    """It answers as the page shows: the first feedback changes the answer, and the weights."""
    answers = [run(line, ports) for line in curls(APPLICATION)]
    shown = [line for line in "".join(blocks(APPLICATION)).splitlines() if line[0] in "{F"]
    number = re.compile(r'"query_id":\d+')
    for answer, expected in zip(answers[2:5], shown[:3], strict=True):
        assert number.sub("", answer) == number.sub("", expected)
    assert answers[5].startswith(shown[3].removesuffix(" ...}"))


@pytest.mark.parametrize(
    "text",
    [BY_HAND, BATCHING, section(CLIPPER, "Management")],
    ids=["versions", "batching", "clipper"],
)
def test_every_line_succeeds(ports, text):
    """In the order of the page."""
    assert curls(text)
    for line in curls(text):
        run(line, ports)
