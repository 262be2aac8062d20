"""A key-value server for rendezvous: ``python -m rdzv_http.server --port 8700``. It keeps everything in memory.

PUT, POST and DELETE ``/RUN/SESSION`` open a session (``?ttl=``), keep it alive and end it; PATCH is a write. GET lists
the keys, or with ``after`` the changes, for which it waits. 404: no such session; 410: the changes are forgotten.
"""

from __future__ import annotations

import argparse
import json
import ssl
import threading
import time
from base64 import b64encode
from collections import defaultdict
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rdzv_http.space import Forgotten, Gone, Space

SLOW_S = 60.0
"""Who takes longer to ask is hung up on."""
MOST_BYTES = 64 << 20
_LOOK_S = 0.1
_STOOD_S = 0.5


class Spaces:
    """Those of all runs; who changes one holds ``changed``, and notifies it."""

    def __init__(self) -> None:
        self.all: dict[str, Space] = defaultdict(Space)
        self.changed = threading.Condition()

    def end_sessions(self) -> None:
        """Those that were not kept alive; for ever. If this process has stood still, all get that time more."""
        while True:
            before = time.monotonic()
            time.sleep(_LOOK_S)
            late = time.monotonic() - before - _LOOK_S
            with self.changed:
                for space in list(self.all.values()):
                    for session, lease in list(space.sessions.items()):
                        lease.ends += late if late > _STOOD_S else 0
                        if lease.ends < time.monotonic():
                            space.end(session)
                            self.changed.notify_all()
                self.tidy()

    def tidy(self) -> None:
        """A run that has no session is over."""
        for run in [run for run, space in self.all.items() if not space.sessions]:
            del self.all[run]


class Handler(BaseHTTPRequestHandler):
    """One request; the connection ends with it."""

    spaces: Spaces
    account = ""
    timeout = SLOW_S
    server_version = "rdzv-http"

    def do(self) -> None:
        """Any method."""
        if not compare_digest(self.headers.get("Authorization", ""), self.account):
            return self.answer(401, {"error": "wrong user or password" if self.account else "this server has no users"})
        url = urlsplit(self.path)
        run, _, session = url.path.lstrip("/").partition("/")
        length = int(self.headers.get("Content-Length", 0))
        if length > MOST_BYTES:
            return self.answer(413, {"error": "too long"})
        given = dict(parse_qsl(url.query)) | json.loads(self.rfile.read(length) or b"{}")
        if not session:
            return self.answer(200, {})
        with self.spaces.changed:
            try:
                found = self.ask(run, session, given)
                status = 200
            except Gone:
                status, found = 404, {"error": "no such session"}
            except Forgotten:
                status, found = 410, {"error": "forgotten"}
        return self.answer(status, found)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do

    def ask(self, run: str, session: str, given: dict[str, Any]) -> Any:
        space = self.spaces.all[run]
        if self.command == "GET":
            return self.look(run, session, given)
        answer: Any = {}
        if self.command == "PUT":
            space.open(session, float(given["ttl"]))
        elif self.command == "POST":
            space.keep_alive(session)
        elif self.command == "PATCH":
            answer = space.write(session, given["number"], given)
        else:
            space.end(session)
            self.spaces.tidy()
        self.spaces.changed.notify_all()
        return answer

    def look(self, run: str, session: str, given: dict[str, Any]) -> Any:
        prefix, after = given.get("prefix", ""), given.get("after")
        end = time.monotonic() + float(given.get("wait", 0))
        while True:
            space = self.spaces.all[run]
            space.lease(session)
            found = space.find(prefix) if after is None else space.since(prefix, int(after))
            left = end - time.monotonic()
            if found or after is None or left <= 0:
                return {"found": found, "revision": space.revision}
            self.spaces.changed.wait(left)

    def answer(self, status: int, what: Any) -> None:
        data = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """A thread for each connection: one that is slow holds up nobody else."""

    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: object, client_address: object) -> None:
        """Who hangs up, or asks nonsense, has no answer."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rdzv_http.server", description="a key-value server for rendezvous")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--cert", help="PEM file; means TLS, and needs --key")
    parser.add_argument("--key")
    parser.add_argument("--credentials", help="file with one line, user:password, without which nobody is answered")
    args = parser.parse_args()
    Handler.spaces = Spaces()
    if args.credentials:
        Handler.account = "Basic " + b64encode(Path(args.credentials).read_bytes().strip()).decode()
    server = Server((args.host, args.port), Handler)
    if args.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(args.cert, args.key)
        # the handshake is made by the connection's own thread: who does not make it holds up nobody else
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=Handler.spaces.end_sessions, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
