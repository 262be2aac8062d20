"""The screen of ``rdzv top``, built with Textual: what ``--once`` prints, every second, with events as they come.

Whatever nodes and strangers have written is shown as plain text: it is neither markup nor terminal control.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, RichLog, Static

from rdzv_launcher.run.node_stats import LogAnswer
from rdzv_launcher.run.stacks.reports import read, report_text
from rdzv_launcher.tools.job import ask_job
from rdzv_launcher.tools.stacks import HERE
from rdzv_launcher.tools.top import COLUMNS, JOB_COLUMNS, events, headline, job_cells, node_cells, worker_lines
from rdzv_launcher.tools.top.watching import EndpointWatch
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.plain_text import printable, printable_data, printable_lines
from rdzv_plugins.questions import LOG, STACKS, RpcResponse, checked
from rdzv_plugins.runtime import OwnThread

_WITHIN_S = 15.0
_LONGEST = 4000
_FILES = "To find the files of a rank, run `rdzv logs DIR` on its machine."


def stacks_text(request: Request, node: Mapping[str, Any]) -> str:
    """Where the workers of ``node`` are; may take some seconds."""
    try:
        answers = _ask(request, node, STACKS, {"within": _WITHIN_S - 1}, HERE)
    except RdzvError as error:
        return printable_lines(str(error))
    workers, silent = read(answers)
    return report_text(workers, silent, threads=False)


def log_text(request: Request, node: Mapping[str, Any], rank: int) -> str:
    """The last lines of a worker of ``node``, by its global rank; may take some seconds."""
    try:
        [answer] = _ask(request, node, LOG, {"rank": rank}, _FILES)
    except RdzvError as error:
        return printable_lines(str(error))
    if answer.problem:
        return f"{answer.host} (pid {answer.pid}): {answer.problem}"
    try:
        return "\n".join(log_lines(checked(answer.answer, LogAnswer)))
    except ValueError:
        return f"{answer.host} (pid {answer.pid}) sent an unreadable answer"


def _ask(
    request: Request, node: Mapping[str, Any], kind: str, arguments: Mapping[str, Any], otherwise: str
) -> list[RpcResponse]:
    of = [node["host"], node["pid"]]
    answers = ask_job(request, kind, {**arguments, "of": of}, _WITHIN_S, otherwise=otherwise)
    return [each for each in answers if [each.host, each.pid] == of][:1]


def log_lines(answer: LogAnswer) -> Iterator[str]:
    """The lines of a node's answer to ``log``."""
    for each in answer.streams:
        name, path = printable(each.stream), printable(each.path)
        if each.problem:
            yield f"{name} {printable(each.problem)}"
            continue
        where = f" ({path})" if path else ""
        yield f"{name}{where}:" if each.lines else f"{name}{where}: nothing yet"
        yield from (f"  {printable(line.expandtabs(4), _LONGEST)}" for line in each.lines)


class Page(ModalScreen[None]):
    """Shows a text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Back")]
    CSS = "Page { background: $background; } Page Static { height: auto; }"

    def __init__(self, heading: str, text: str) -> None:
        super().__init__()
        self._heading, self._text = heading, text

    def compose(self) -> ComposeResult:
        yield Static(self._heading, id="heading", markup=False)
        with VerticalScroll():
            yield Static(Text(self._text), id="text", markup=False)
        yield Footer()


class AskedPage(Page):
    """Shows a text that takes time: it is asked for when the page opens."""

    def __init__(self, heading: str, ask: Callable[[], str]) -> None:
        """``ask`` is called on a separate thread."""
        super().__init__(heading, "waiting for an answer ...")
        self._ask = ask
        self._wanted = 0
        self._asking = False

    def on_mount(self) -> None:
        self.action_again()

    def action_again(self) -> None:
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

    def action_other(self, step: int) -> None:
        """Show the next worker of the node, or the previous one."""
        self._shown = (self._shown + step) % len(self._workers)
        self.query_one("#heading", Static).update(Text(self._title_now()))
        self.query_one("#text", Static).update("waiting for an answer ...")
        self.action_again()

    def _title_now(self) -> str:
        worker = self._workers[self._shown]
        return (
            f"Last lines of rank {worker['rank']} (local {worker['local_rank']}, pid {worker['pid']}) on {self._host}"
        )

    def put(self, text: str) -> None:
        """Show the text, starting at its end."""
        super().put(text)
        self.query_one(VerticalScroll).scroll_end(animate=False)


_EVERY_S = 1.0
_WORKERS_SHOWN = 8


class Screen(App[None]):
    """Shows ``watch``, which has been started, until the user quits."""

    TITLE = "rdzv top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; max-height: 5; }
    #jobs { height: auto; max-height: 8; }
    #nodes { height: 1fr; min-height: 4; }
    #workers { height: auto; max-height: 9; border-top: solid gray; }
    #events { height: 6; border-top: solid gray; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "stacks", "Stacks"),
        Binding("l", "log", "Log"),
        Binding("w", "waits", "Waits"),
        Binding("r", "reason", "Last end"),
    ]

    def __init__(self, watch: EndpointWatch, request: Request) -> None:
        """``request`` is used to ask the nodes of a job for their stacks."""
        super().__init__()
        self._watch, self._request = watch, request
        self._data: dict[str, Any] = {"jobs": []}
        self._told: tuple[str, int] = ("", 0)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield _Table(JOB_COLUMNS, id="jobs")
        yield _Table(COLUMNS, id="nodes")
        yield Static(id="workers", markup=False)
        yield RichLog(id="events", wrap=True, markup=False, highlight=False)
        yield Footer()

    def on_mount(self) -> None:
        self._table("jobs").display = False
        self._table("nodes").focus()
        self.set_interval(_EVERY_S, self.show)
        self.show()

    def on_data_table_row_highlighted(self) -> None:
        """Show another job or node when it is chosen."""
        if self._is_drawn:
            self._show_job()

    @property
    def _is_drawn(self) -> bool:
        """False while the screen ends: its parts go one by one, while the clock still ticks."""
        parts = [
            part for each in self.screen_stack[:1] for part in each.query("#jobs, #nodes, #head, #workers, #events")
        ]
        return len(parts) == 5 and all(part.is_attached for part in parts)

    @property
    def job(self) -> dict[str, Any] | None:
        """The job that is shown."""
        jobs = self._data["jobs"]
        chosen = self._table("jobs").cursor_row if len(jobs) > 1 else 0
        return jobs[min(max(chosen, 0), len(jobs) - 1)] if jobs else None

    @property
    def node(self) -> dict[str, Any] | None:
        """The node that is selected."""
        nodes = self.job["nodes"] if self.job is not None else []
        chosen = self._table("nodes").cursor_row
        return nodes[min(max(chosen, 0), len(nodes) - 1)] if nodes else None

    def show(self) -> None:
        """Show what is known now. Sends nothing."""
        if not self._is_drawn:
            return
        self._data = printable_data(self._watch.data())
        jobs = self._data["jobs"]
        table = self._table("jobs")
        table.display = len(jobs) > 1
        table.put({each["run"]: job_cells(each) for each in jobs})
        self._show_job()

    def _show_job(self) -> None:
        job, base = self.job, self.screen_stack[0]
        if job is None:
            text = self._data.get("problem") or f"no job found at {self._request.endpoint}"
            base.query_one("#head", Static).update(Text(text))
            return
        lines = headline(job, self._request.endpoint)
        base.query_one("#head", Static).update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
        self._table("nodes").put(
            {f"{each['host']} {each['pid']} {at}": node_cells(each) for at, each in enumerate(job["nodes"])}
        )
        found = worker_lines(self.node) if self.node is not None else []
        if len(found) > _WORKERS_SHOWN:
            found[_WORKERS_SHOWN:] = [f"and {len(found) - _WORKERS_SHOWN} more"]
        base.query_one("#workers", Static).update(Text("\n".join(found) or "no workers", no_wrap=True))
        self._show_events(job)

    def _show_events(self, job: Mapping[str, Any]) -> None:
        log, (run, count) = self.screen_stack[0].query_one("#events", RichLog), self._told
        if run != job["run"]:
            log.clear()
            count = 0
        for line in events(job, job["events_ever"] - count):
            log.write(Text(line))
        self._told = job["run"], job["events_ever"]

    def _table(self, name: str) -> _Table:
        """One of our tables, also while something is shown on top of it."""
        return self.screen_stack[0].query_one(f"#{name}", _Table)

    def action_reason(self) -> None:
        text = self.job["last_end"] if self.job is not None else ""
        self.push_screen(Page("How the last round ended", text or "no round has ended while watching"))

    def action_waits(self) -> None:
        job = self.job or {"waits": [], "waits_problem": ""}
        text = "\n".join(job["waits"]) or job["waits_problem"] or "no client waits in the workers' store"
        self.push_screen(Page("Who waits for which key", text))

    def action_stacks(self) -> None:
        """Show where the workers of the selected node are, as soon as it has answered."""
        job, node = self.job, self.node
        if job is not None and node is not None:
            request = self._request_of(job)
            heading = f"Stacks of the workers on {node['host']} (agent's pid {node['pid']})"
            self.push_screen(AskedPage(heading, lambda: stacks_text(request, node)))

    def action_log(self) -> None:
        """Show what the workers of the selected node have printed last."""
        job, node = self.job, self.node
        if job is None or node is None or not node["workers"]:
            self.push_screen(Page("Last lines of a worker", "no workers on this node"))
            return
        request = self._request_of(job)
        self.push_screen(LogPage(node["host"], node["workers"], lambda rank: log_text(request, node, rank)))

    def _request_of(self, job: Mapping[str, Any]) -> Request:
        return dataclasses.replace(self._request, run_id=job["run"], given=self._request.given | {"run_id"})


class _Table(DataTable[Text]):
    """Rows that are changed in place, so that the selection is kept."""

    def __init__(self, columns: Sequence[str], *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False, cell_padding=1)
        self._names = columns
        self._rows: dict[str, tuple[str, ...]] = {}
        for name in columns:
            self.add_column(name, key=name)

    def put(self, rows: Mapping[str, tuple[str, ...]]) -> None:
        if list(rows) != list(self._rows):
            at = self.cursor_row
            self.clear()
            for key, cells in rows.items():
                self.add_row(*map(Text, cells), key=key)
            self.move_cursor(row=min(at, len(rows) - 1), animate=False)
        else:
            for key, cells in rows.items():
                for name, new, old in zip(self._names, cells, self._rows[key], strict=True):
                    if new != old:
                        self.update_cell(key, name, Text(new), update_width=True)
        self._rows = dict(rows)
