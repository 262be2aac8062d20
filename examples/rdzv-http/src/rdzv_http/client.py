"""One session's client of the server: an HTTP request for each coroutine."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from rdzv_plugins import Event, KeyValue
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import Compacted
from rdzv_plugins.kit import Reason, Security, ServiceClient, SessionEnded, Unusable

MOST_BYTES = 64 << 20
"""Of an answer: nobody makes this node read for ever."""
WRONG_PLACE = "Check host and port: is rdzv-http's server there?"


class HttpClient(ServiceClient):
    """For the run ``run_id`` at ``endpoint``."""

    service = "rdzv-http"
    security: Security

    def __init__(self, endpoint: Endpoint, run_id: str, security: Security) -> None:
        super().__init__()
        self.address = str(endpoint)
        self._endpoint, self.security = endpoint, security
        self._path = f"/{quote(run_id, safe='')}/{self.session}"
        self._tls = security.context() if security.tls else None

    async def connect(self) -> None:
        await self._ask("GET", "/")

    async def disconnect(self) -> None:
        """Nothing stays connected: a connection for each request."""

    async def open(self, ttl: float) -> float:
        await self._ask("PUT", f"{self._path}?ttl={ttl}")
        return ttl

    async def keep_alive(self) -> None:
        await self._ask("POST", self._path)

    async def end(self) -> None:
        await self._ask("DELETE", self._path)

    async def create(self, number: int, key: str, value: bytes, *, ephemeral: bool) -> tuple[bool, KeyValue]:
        told = await self._write(number, absent=key, put=[(key, _text(value))], ephemeral=ephemeral)
        if told["done"]:
            return True, KeyValue(key, value, told["revision"])
        held, revision = told["held"]
        return False, KeyValue(key, b64decode(held), revision)

    async def put(
        self, number: int, items: Mapping[str, bytes], *, ephemeral: bool, guard: KeyValue | None
    ) -> int | None:
        put = [(key, _text(value)) for key, value in items.items()]
        told = await self._write(number, put=put, ephemeral=ephemeral, guard=_pair(guard))
        return int(told["revision"]) if told["done"] else None

    async def delete(self, number: int, keys: Sequence[str], *, guard: KeyValue | None) -> bool:
        return bool((await self._write(number, delete=keys, guard=_pair(guard)))["done"])

    async def _write(self, number: int, **what: Any) -> Any:
        return await self._ask("PATCH", self._path, {"number": number, **what})

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        told = await self._ask("GET", f"{self._path}?{urlencode({'prefix': prefix})}")
        return [KeyValue(key, b64decode(value), number) for key, value, number in told["found"]], told["revision"]

    async def changes(self, prefix: str, after: int, wait: float) -> tuple[Sequence[Event], int]:
        query = urlencode({"prefix": prefix, "after": after, "wait": wait})
        told = await self._ask("GET", f"{self._path}?{query}")
        found = [
            Event(key, None if value is None else b64decode(value), number) for key, value, number in told["found"]
        ]
        return found, told["revision"]

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        account = f"{self.security.user}:{self.security.password}".encode()
        head = {"Host": self.address, "Content-Length": len(data)}
        if self.security.password:
            head["Authorization"] = f"Basic {b64encode(account).decode()}"
        lines = [f"{method} {path} HTTP/1.0", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        status, answer = await self._exchange("\r\n".join(lines).encode() + data)
        if status == 401:
            text = f"it does not take the password of {self.security.who}: {json.loads(answer)['error']}"
            raise Unusable(Reason(text, "Check --rdzv-conf credentials=FILE.", final=True, access=True))
        if status == 404:
            raise SessionEnded
        if status == 410:
            raise Compacted("the server has forgotten the changes that were asked for", remedy="List the keys again.")
        if status != 200:
            raise Unusable(Reason(f"it answers HTTP {status}", WRONG_PLACE))
        return json.loads(answer)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection(self._endpoint.host, self._endpoint.port, ssl=self._tls)
        try:
            self.local_addr = writer.get_extra_info("sockname")[0]
            self.remote_addr = writer.get_extra_info("peername")[0]
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if not re.search(rf"(?im)^server: {self.service}\b", head):
                raise Unusable(Reason("something else answers there", WRONG_PLACE, final=True))
            length = int(re.findall(r"(?im)^content-length: *(\d+)", head)[0])
            if length > MOST_BYTES:
                raise Unusable(Reason(f"it answers with {length} bytes, which nobody has asked for"))
            return int(head.split()[1]), await reader.readexactly(length)
        finally:
            writer.transport.abort()


def _text(value: bytes) -> str:
    return b64encode(value).decode()


def _pair(guard: KeyValue | None) -> tuple[str, int] | None:
    return None if guard is None else (guard.key, guard.revision)
