"""A way to a member that a test can hold up: answers that get lost, requests that get stuck half-way."""

from __future__ import annotations

from kits.eventually import eventually
from kits.hooked_relay import HookedRelay
from rdzv_plugins.endpoints import Endpoint

SECONDS = 60.0


class HoldingRelay(HookedRelay):
    """``with HoldingRelay(member.endpoint) as relay``: each direction by itself can be held, or break after so much."""

    def __init__(self, target: Endpoint) -> None:
        self._answers_held = False
        self._allowance: int | None = None  # bytes that clients may still send
        self._breaks: dict[bool, int] = {}  # after so many more bytes of answers (True), or requests (False)
        super().__init__(target.host, target.port)
        self.endpoint = Endpoint("127.0.0.1", self.port)

    @property
    def is_used(self) -> bool:
        """A client has come this way, and has not left."""
        with self._changed:
            return bool(self._pairs)

    def hold_answers(self) -> None:
        """From now on the member is heard and cannot be heard."""
        with self._changed:
            self._answers_held = True

    def hold_requests(self, after: int) -> None:
        """Let so many more bytes of the clients through, and no more."""
        with self._changed:
            self._allowance = after

    def wait_held(self) -> None:
        """Until a client has sent more than it may."""
        eventually(lambda: self._allowance == 0, lambda: f"{self._allowance} bytes left")

    def release(self) -> None:
        """Let everything through."""
        with self._changed:
            self._answers_held, self._allowance = False, None
            self._changed.notify_all()

    def break_once(self, *, answers: bool, after: int) -> None:
        """Break all connections after so many more bytes that way; from then on everything comes through."""
        with self._changed:
            self._breaks = {answers: after}

    @property
    def has_broken(self) -> bool:
        """What ``break_once`` asked for has happened."""
        return not self._breaks

    def __exit__(self, *error: object) -> None:
        self.refuse()  # else what was held would come through
        self.release()
        super().__exit__(*error)

    def _part(self, data: bytes, answers: bool) -> bytes:
        with self._changed:
            if answers in self._breaks:
                data = data[: self._breaks[answers]]
                self._breaks[answers] -= len(data)
            if answers:
                assert self._changed.wait_for(lambda: not self._answers_held, SECONDS)
                return data
            assert self._changed.wait_for(lambda: self._allowance != 0, SECONDS)
            if self._allowance is not None:
                data = data[: self._allowance]
                self._allowance -= len(data)
            return data

    def _passed(self, part: bytes, answers: bool) -> None:
        with self._changed:
            # not by a part that has passed before the break was asked for: that one has bytes
            if not part and self._breaks.get(answers) == 0:
                self._breaks = {}
                self.cut()
