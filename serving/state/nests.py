"""Where replicas can be found that outlived a gateway, by kind of model: one small file of the state's folder.

In: directories of templates and keepers. Out: the same, for the next server. It is a hint and no promise: what it
speaks of is there for seconds after a server was killed, so a file that is missing, old or nonsense means that nothing
is left.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib

log = logging.getLogger(__name__)

_FILE = "left.json"


class Nests:
    """The file of one server."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Nothing is read yet.

        Args:
            folder: of the state, which this process owns.
        """
        self._file = folder / _FILE
        self._directories: dict[str, str] = {}

    def taken(self) -> dict[str, pathlib.Path]:
        """What the server before has noted, kind -> directory; it stays until something else is noted of the kind."""
        try:
            data = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("no replicas can be taken over", extra={"error": str(error)})
            return {}
        if not isinstance(data, dict) or not all(isinstance(one, str) for one in data.values()):
            log.warning("no replicas can be taken over", extra={"error": f"{self._file}: {data!r}"})
            return {}
        self._directories = data
        return {kind: pathlib.Path(directory) for kind, directory in data.items()}

    def note(self, kind: str, directory: pathlib.Path | None) -> None:
        """Note where a kind's replicas are, None: there are none to be found any more.

        The file is replaced as a whole. It need not outlive a loss of power, which no replica does.
        """
        if directory is None:
            self._directories.pop(kind, None)
        else:
            self._directories[kind] = str(directory)
        written = self._file.with_suffix(".new")
        try:
            written.write_text(json.dumps(self._directories), encoding="utf-8")
            os.replace(written, self._file)  # noqa: PTH105 - as it is called everywhere
        except OSError as error:
            log.warning("replicas will not be taken over", extra={"error": str(error)})
