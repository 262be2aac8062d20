"""The proof of a token as native/PROTOCOL.md has it, byte by byte, so that tests can say each of them wrong."""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass, field

from kits.wire.wire_client import Raw
from rdzv_plugins.security.job_token import JobToken

STORE = 3
GO_ON, NEEDED = (b"RDZA" + struct.pack("<I", number) for number in range(2))
CLIENT, SERVER = 1, 2
RUN = "run"
KEY = b"k" * 32
MINE = JobToken((KEY,))
OTHER = JobToken((b"o" * 32,))


@dataclass
class Client:
    """What one client says, and is told."""

    purpose: int = STORE
    run: str = RUN
    nonce: bytes = field(default_factory=lambda: os.urandom(32))

    @property
    def introduction(self) -> bytes:
        run = self.run.encode()
        head = b"\xf8RDZV" + struct.pack("<IB", 1, self.purpose)
        return head + self.nonce + struct.pack("<H", len(run)) + run

    def proof(self, theirs: bytes, side: int = CLIENT) -> bytes:
        run = self.run.encode()
        said = b"rdzv-plugins proof of a token" + struct.pack("<IBB", 1, side, self.purpose)
        return hmac.digest(KEY, said + self.nonce + theirs + struct.pack("<I", len(run)) + run, "sha256")

    def admitted(self, port: int) -> Raw:
        """A connection on which all was proved."""
        raw = Raw(port, validated=False)
        theirs = raw.ask(self.introduction, 40)
        assert theirs[:8] == GO_ON
        told = raw.ask(b"\1" + self.proof(theirs[8:]), 41)
        assert told == GO_ON + b"\0" + self.proof(theirs[8:], SERVER)
        return raw
