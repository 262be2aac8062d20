"""Turns bytes, as they arrive, into whole lines of text."""

from __future__ import annotations

import codecs
import io

LONGEST = 256 * 1024
"""Characters after which text without a line end counts as a line: memory is not endless."""


class Lines:
    """Text of one stream; invalid UTF-8 is replaced. A carriage return also ends a line, as when Python reads files."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._begun: list[str] = []
        self._size = 0

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """The lines that are whole now, each with its end. ``final``: the last one is, too, whatever it lacks."""
        text = self._decoder.decode(data, final)
        whole, newline, rest = text.rpartition("\n")
        lines = []
        if newline:
            lines = [line + "\n" for line in ("".join(self._begun) + whole).split("\n")]
            self._begun, self._size = [], 0
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
        if self._size >= LONGEST or (final and self._size):
            lines.append("".join(self._begun) + "\n")
            self._begun, self._size = [], 0
        return lines
