"""As much of HTTP as a probe needs: the first line of a request, and a whole response. No sockets.

The standard library's server would cost 25 ms of import in every agent, and a thread for each connection.
"""

from __future__ import annotations

import re

from msgspec import Struct

MOST_BYTES = 4096
"""The largest head of a request, in bytes."""
_LINE = rb"(?P<method>[A-Z]{1,16}) (?P<path>/[!-~]*) HTTP/1\.[01]\r?\n"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class Wanted(Struct, frozen=True):
    """What a complete request asks for, or the status with which it is refused."""

    path: str = ""
    refused: int = 0
    head: bool = False
    """The response is to be sent without its body."""


def read_request(data: bytes) -> Wanted | None:
    """Parse what has arrived so far; None: more is to come."""
    if not (b"\r\n\r\n" in data or b"\n\n" in data):
        return Wanted(refused=431) if len(data) >= MOST_BYTES else None
    line = re.match(_LINE, data)
    if line is None:
        return Wanted(refused=400)
    if line["method"] not in (b"GET", b"HEAD"):
        return Wanted(refused=405)
    return Wanted(line["path"].decode("ascii"), head=line["method"] == b"HEAD")


TEXT = "text/plain; charset=utf-8"


def response(status: int, text: str, *, kind: str = TEXT, head: bool = False) -> bytes:
    """The whole response; ``kind`` is its content type. The connection should be closed after it."""
    body = f"{text.removesuffix(chr(10))}\n".encode(errors="replace")
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else body)
