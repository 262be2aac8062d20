"""Turns bytes, as they arrive, into whole lines of text; and what becomes of a line whose end is not there yet."""

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

    @property
    def unfinished(self) -> str:
        """The line whose end has not come yet, so far."""
        return "".join(self._begun)

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


class OpenLine:
    """The last line of a console, as long as its end has not come: a prompt. For one thread.

    What its worker writes next continues it. Anything else begins a line of its own.
    """

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._cut: set[int] = set()
        """The workers whose line was ended for the sake of another's."""

    def then(self, ranks: tuple[int, ...], head: str, text: str) -> str:
        """What to write for a line, or a piece of one, that the workers with these local ranks have written alike."""
        if self._ranks == ranks:
            shown = text
        elif text == "\n" and self._cut.issuperset(ranks):  # the end of what has been ended already
            shown = ""
        else:
            shown = ("\n" if self._ranks else "") + head + text
            self._cut.update(self._ranks)
        self._cut.difference_update(ranks)
        if shown:
            self._ranks = () if text.endswith("\n") else ranks
        return shown
