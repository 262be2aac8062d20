"""What the screen of ``rdzv top`` shows on top of everything else, until a key closes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from rdzv_plugins.threads import OwnThread


class Page(ModalScreen[None]):
    """Shows a text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]
    CSS = "Page { background: $background; } Page Static { height: auto; }"

    def __init__(self, heading: str, text: str) -> None:
        super().__init__()
        self._heading, self._text = heading, text

    def compose(self) -> ComposeResult:
        """The text, and how to go back."""
        yield Static(self._heading, id="heading", markup=False)
        with VerticalScroll():
            yield Static(Text(self._text), id="text", markup=False)
        yield Footer()


class AskedPage(Page):
    """Shows a text that takes time: it is asked for when the page opens."""

    def __init__(self, heading: str, ask: Callable[[], str]) -> None:
        """``ask`` is called on a separate thread."""
        super().__init__(heading, "asking ...")
        self._ask = ask
        self._wanted = 0
        self._asking = False

    def on_mount(self) -> None:
        """Ask for the text."""
        self.again()

    def again(self) -> None:
        """Ask again; an answer to an earlier question is no longer shown.

        There is one question at a time, however long it takes, so that a key that is held down does not flood a node.
        """
        self._wanted += 1
        if not self._asking:
            self._begin()

    def _begin(self) -> None:
        self._asking = True
        number, ask, app = self._wanted, self._ask, self.app

        def tell(text: str) -> None:
            with contextlib.suppress(RuntimeError):  # the screen has been left meanwhile
                app.call_from_thread(self._told, number, text)

        OwnThread(target=lambda: tell(ask()), name="rdzv-top-asks", on_error=lambda error: tell(str(error))).start()

    def _told(self, number: int, text: str) -> None:
        self._asking = False
        if self.is_mounted and number == self._wanted:
            self.put(text)
        elif self.is_mounted:
            self._begin()

    def put(self, text: str) -> None:
        """Show this text instead."""
        self.query_one("#text", Static).update(Text(text))


class LogPage(AskedPage):
    """The last lines of the workers of a node, one worker at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "again", "Again"),
        Binding("n", "other(1)", "Next worker"),
        Binding("p", "other(-1)", "Previous"),
    ]

    def __init__(self, host: str, workers: Sequence[Mapping[str, Any]], ask: Callable[[int], str]) -> None:
        """``ask`` returns the text of a worker, given its global rank."""
        super().__init__("", lambda: ask(self._workers[self._shown]["rank"]))
        self._host, self._workers, self._shown = host, workers, 0
        self._heading = self._title_now()

    def action_again(self) -> None:
        """Show what the worker has printed by now."""
        self.again()

    def action_other(self, step: int) -> None:
        """Show the next worker of the node, or the previous one."""
        self._shown = (self._shown + step) % len(self._workers)
        self.query_one("#heading", Static).update(Text(self._title_now()))
        self.query_one("#text", Static).update("asking ...")
        self.again()

    def _title_now(self) -> str:
        worker = self._workers[self._shown]
        return (
            f"Last lines of rank {worker['rank']} (local {worker['local_rank']}, pid {worker['pid']}) on {self._host}"
        )

    def put(self, text: str) -> None:
        """Show the text, starting at its end."""
        super().put(text)
        self.query_one(VerticalScroll).scroll_end(animate=False)
