"""Export as settings of Luthier's server, for `python -m serving --settings`.

A scenario also gets `deploy.sh`, which deploys its models. Text from a study appears in it only
shell-quoted or in one-line comments.
"""

from __future__ import annotations

import json
import pathlib
import shlex

from serving.settings import SETTINGS
from serving.settings.server import ServerSettings
from tuner.export import provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs, program
from tuner.settings.recommended_commands import serve_command
from tuner.values.study_record import SharedModels

FILE_NAME = "best.yaml"
SCRIPT = "deploy.sh"
ADDRESS = f"http://127.0.0.1:{ServerSettings().admin_port}"


def files(subject: ExportInput) -> Files:
    """Return the settings file, and a scenario's deploy script."""
    record, knobs = subject.record, Knobs(subject.advice.configuration)
    file = subject.place.with_name(f"{subject.place.name}.yaml")
    command = serve_command(record.served_model, file, is_trusted=record.is_trusted)
    settings = knobs.take_settings()
    remarks: list[str] = []
    scripts: Files = {}
    if record.shared is not None:
        settings = {**record.shared.settings, **settings}
        remarks.append(f"Its models, once it runs: sh {subject.quoted(SCRIPT)}")
        script = subject.place.with_name(SCRIPT)
        scripts[SCRIPT] = deploy_script(record.shared, script, study=record.name, server=command)
    settings |= record.told
    if record.spawner != SETTINGS["replica.spawner"].default:
        settings["replica.spawner"] = record.spawner
    if record.limits != SETTINGS["replica.limits"].default:
        settings["replica.limits"] = record.limits
    head = provenance.head(subject, "Settings", use=command, knobs=knobs, remarks=remarks)
    return {file.name: head + yaml_text.dump_settings(settings), **scripts}


def deploy_script(shared: SharedModels, place: pathlib.PurePath, *, study: str, server: str) -> str:
    """Return `deploy.sh`; `place` is its path, `server` the command that starts the server."""
    told = [
        f"The models of study {study}, for a server that runs with its settings:",
        f"  {server}",
        f"Use: sh {shlex.quote(str(place))} [{ADDRESS}]",
        "Models that are already deployed are left unchanged, so the script can be run again.",
        (
            "The server's token is read from LUTHIER_ADMIN_TOKEN, or from the file that the "
            "server wrote"
        ),
        "on this machine; for https:// with your own certificate, name its file in CURL_CA_BUNDLE.",
    ]
    functions = program("deploy.sh").replace("ADDRESS", ADDRESS)
    calls = "".join(
        f"deploy {shlex.quote(json.dumps(model))} {shlex.quote(name)} {copies}\n"
        for name, (model, copies) in shared.groups.items()
    )
    return f"#!/bin/sh\n{provenance.comments(told)}{functions}\n{calls}"
