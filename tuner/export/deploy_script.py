"""The script `deploy.sh`, which deploys a scenario's models to a running server.

Text from a study appears only shell-quoted or in one-line comments.
"""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Iterator

from serving.settings.server import ServerSettings
from tuner.export import provenance
from tuner.values.study_record import SharedModels

SCRIPT = "deploy.sh"
ADDRESS = f"http://127.0.0.1:{ServerSettings().admin_port}"


def text(shared: SharedModels, place: pathlib.PurePath, *, study: str, server: str) -> str:
    """Script; `place` is its path, `server` the command that starts the server."""
    told = [
        f"The models of study {study}, for a server that runs with its settings:",
        f"  {server}",
        f"Use: sh {provenance.shell_quote(place)} [{ADDRESS}]",
        "Models that are already deployed are left unchanged, so the script can be run again.",
        (
            "The server's token is read from LUTHIER_ADMIN_TOKEN, or from the file that the "
            "server wrote"
        ),
        "on this machine; for https:// with your own certificate, name its file in CURL_CA_BUNDLE.",
    ]
    return f"#!/bin/sh\n{provenance.comments(told)}{_FUNCTIONS}\n" + "".join(
        f"{line}\n" for line in _groups(shared)
    )


def _groups(shared: SharedModels) -> Iterator[str]:
    for name, (model, copies) in shared.groups.items():
        yield f"deploy {shlex.quote(json.dumps(model))} {shlex.quote(name)} {copies}"


_FUNCTIONS = r"""set -eu
admin=${1:-ADDRESS}

# The token that a server of this user has made at its start is in a file that its port names.
case $admin in http://127.0.0.1:* | http://localhost:*)
    port=${admin##*:}
    for folder in "${TMPDIR:-/tmp}" "${XDG_RUNTIME_DIR:-/tmp}"; do
        for file in "$folder"/luthier-*/admin-"${port%%/*}".token; do
            if [ -O "$file" ] && [ -z "${LUTHIER_ADMIN_TOKEN:-}" ]; then
                LUTHIER_ADMIN_TOKEN=$(cat "$file")
            fi
        done
    done ;;
esac

# ask ARGUMENTS: what the admin port answers, and its status behind it
ask() {
    if [ -n "${LUTHIER_ADMIN_TOKEN:-}" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$LUTHIER_ADMIN_TOKEN" |
            curl -sS -K - -w ' %{http_code}' "$@"
    else
        curl -sS -w ' %{http_code}' "$@"
    fi
}

# deploy MODEL NAME COPIES: a model, as JSON has it, under the names NAME-0, NAME-1, ...
deploy() {
    copy=0
    while [ "$copy" -lt "$3" ]; do
        name=$2-$copy
        copy=$((copy + 1))
        answer=$(ask "$admin/admin/models/$name")
        case $answer in
            *' 200') echo "$name is already deployed"; continue ;;
            *' 404') ;;
            *) echo "deploy.sh: $name: $answer" >&2; exit 1 ;;
        esac
        answer=$(ask -d "{\"model\": $1, \"name\": \"$name\"}" "$admin/admin/models")
        case $answer in
            *' 201') echo "$name is deployed" ;;
            *) echo "deploy.sh: $name: $answer" >&2; exit 1 ;;
        esac
    done
}
""".replace("ADDRESS", ADDRESS)
