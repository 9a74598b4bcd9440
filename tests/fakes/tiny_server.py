"""A small server of another engine: answers after a while that its knobs decide, or fails as it is told.

    python tiny_server.py PORT DELAY_MS [FAULT]

Faults: `crash` at once, `never` ready, `die` under load, `hold` against SIGTERM with a child in a
session of its own, `oom` at the first request.
"""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import time

PORT, DELAY_S = int(sys.argv[1]), float(sys.argv[2]) / 1e3
FAULT = sys.argv[3] if len(sys.argv) > 3 else "none"
BODY = b"answered"
answered = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self._send(503 if FAULT == "never" else 200)

    def do_POST(self):
        global answered  # noqa: PLW0603
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(DELAY_S)
        answered += 1
        if FAULT == "oom":
            eaten = []
            while True:
                eaten.append(b"x" * (16 << 20))
        if FAULT == "die" and answered > 5:
            sys.stderr.write("a fault in the model\n")
            os._exit(7)
        self._send(200)

    def _send(self, status):
        self.send_response(status)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Has room for all connections that a load opens at once: one that finds none is tried again a second later."""

    request_queue_size = 512


def main():
    if FAULT == "crash":
        sys.exit("there is no such model")
    if FAULT == "hold":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", f"300.{PORT}"], start_new_session=True)
    server = Server(("127.0.0.1", PORT), Handler)
    sys.stdout.write(f"listening on {server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
