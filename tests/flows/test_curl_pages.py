"""The `curl` lines of the pages, run by curl one after another, on a server with the models of all of them.

They run as they stand, but for the ports, which are the server's, and the option that makes an error of
the server an exit code; the field with the admin port's token is what the page's own line makes. Where there is
no curl, they are skipped.
"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
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
OF_ECHO = "".join(
    section(BATCHING, heading) for heading in ("The policies", "Applications and priorities")
)
"""What the page of batching asks of models that come along; others it asks of a model of somebody else's."""
SERVERS = (
    *re.findall(r"^python -m serving (.*)$", APPLICATION, flags=re.MULTILINE),
    *re.findall(r"`python -m serving ([^`]+)`", BY_HAND),
    *re.findall(r"^With `python -m serving ([^`]+)`:$", BATCHING, flags=re.MULTILINE),
)
"""Options with which the pages start a server."""
HEADERS = [
    line
    for page in (BATCHING, CLIPPER, SELECTION, VERSIONS)
    for line in re.findall(r"^admin=.*$", page, flags=re.MULTILINE)
]
"""Where each page finds the token of the admin port."""
ASKED_AGAIN = 50
"""Times, at most, where an answer misses the application's objective of 100 ms: the machine may be busy."""
NUMBER = re.compile(r'"query_id":\d+')


def header(port):
    """What the pages' own line makes of the token of the server on a port."""
    (line,) = {re.sub(r"admin-\d+", f"admin-{port}", one) for one in HEADERS}
    script = f'{line}; printf %s "$admin"'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", name="ports")
def _ports(tmp_path_factory):
    """One server with the models of all pages: the ports that stand for those of the pages."""
    folder = tmp_path_factory.mktemp("models")
    for block in blocks(APPLICATION, "python"):
        (folder / block.split()[1]).write_text(block)
    assert len(SERVERS) == 3
    assert len(HEADERS) == 4
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
            yield {
                "8000": query,
                "1337": query,
                "8002": admin,
                "1338": admin,
                "$admin": header(admin),
            }
        finally:
            process.kill()


def run(line, ports):
    """What a `curl` line prints."""
    words = shlex.split(re.sub(r"localhost:(\d+)", lambda at: f"127.0.0.1:{ports[at[1]]}", line))
    words = [ports["$admin"] if word == "$admin" else word for word in words]
    command = [words[0], "--fail-with-body", "--noproxy", "*", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def asked(line, ports, expected):
    """What a query prints but for its number, asked again while it is not answered in time."""
    for _ in range(ASKED_AGAIN):
        answer = NUMBER.sub("", run(line, ports))
        if answer == NUMBER.sub("", expected):
            break
    return answer


def test_the_application_of_the_page_of_selection(ports):
    """It answers as the page shows: the first feedback changes the answer, and the weights."""
    add, link, first, update, second, state = curls(APPLICATION)
    shown = [line for line in "".join(blocks(APPLICATION)).splitlines() if line[0] in "{F"]
    run(add, ports)
    run(link, ports)
    assert asked(first, ports, shown[0]) == NUMBER.sub("", shown[0])
    assert run(update, ports) == shown[1]
    assert asked(second, ports, shown[2]) == NUMBER.sub("", shown[2])
    assert run(state, ports).startswith(shown[3].removesuffix(" ...}"))


@pytest.mark.parametrize(
    "text",
    [BY_HAND, OF_ECHO, section(CLIPPER, "Management")],
    ids=["versions", "batching", "clipper"],
)
def test_every_line_succeeds(ports, text):
    """In the order of the page."""
    assert curls(text)
    for line in curls(text):
        run(line, ports)
