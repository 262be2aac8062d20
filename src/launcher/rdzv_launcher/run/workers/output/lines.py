"""From bytes as they come to whole lines of text."""

from __future__ import annotations

import codecs
import io

LONGEST = 256 * 1024
"""Characters of a line without an end after which it is taken for one: nobody's memory is without end."""


class Lines:
    """Text of one stream. UTF-8; what is none is replaced. A carriage return ends a line too, as Python reads files."""

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
