"""What is below a process is found by the kernel's lists of children, and where it has none by asking everybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.keeper.keeper_kit import FAMILY, Agents, family, pids_in

from rdzv_launcher.run.keeper import descendants
from rdzv_launcher.run.keeper.descendants import Process

BY_LISTS = "children.all_pids = None"
"""Who looks at all processes meets an error, which ends the keeper."""
BY_ASKING = "children.LISTED, children._listed = False, None"
KEEPS = """
keeper = Keeper()
worker, = keeper.start([Start(0, ("./family",), env | {"PIDS": "pids"}, "out", "err")]).values()
say("started", worker)
sys.stdin.readline()
say(sorted(keeper.leftovers(timeout=60)), sorted(keeper.leftovers(daemons=True, timeout=60)))
say(keeper.close())
"""


@pytest.mark.parametrize(
    "how", [BY_LISTS, pytest.param(BY_ASKING, marks=pytest.mark.thorough)], ids=["lists", "asking"]
)
def test_a_keeper_finds_all_that_a_worker_has_started(agents: Agents, how: str) -> None:
    family(agents.directory)
    agent = agents.start(f"from rdzv_plugins.linux import children\n{how}\n{KEEPS}")
    _, worker = agent.read()
    pids = pids_in(Path(agents.directory / "pids"), FAMILY)
    agents.note(pids)
    agent.go_on()
    in_session, all_of_it = agent.read()
    assert worker in in_session
    assert set(in_session) < set(all_of_it)
    assert set(pids) <= set(all_of_it)
    assert agent.rest() == [[[]]]
    agents.wait_gone(pids)


def process(pid: int, parent: int, started: str = "1", lives: bool = True) -> Process:
    return Process(pid, parent, pid, started, lives)


def test_a_number_that_is_anothers_by_now_is_no_descendant(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 was a child of 10 when the list was read, and 12 ended while its children were looked at."""
    lists = {1: [10, 12], 10: [11], 12: [13], 13: [], 11: []}
    seen = {
        1: [process(1, 0)],
        10: [process(10, 1)],
        11: [process(11, 77)],
        12: [process(12, 1), process(12, 77, "2")],
        13: [process(13, 12)],
    }
    monkeypatch.setattr(descendants, "children_now", lambda: lists.__getitem__)
    monkeypatch.setattr(descendants, "look", lambda pid: seen[pid].pop(0) if len(seen[pid]) > 1 else seen[pid][0])
    assert sorted(each.pid for each in descendants.descendants([1])) == [10, 12]


def test_what_is_spared_and_what_has_ended_is_left_out_but_not_what_is_below(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {1: [10, 12], 10: [11], 11: [], 12: []}
    seen = {1: process(1, 0), 10: process(10, 1), 11: process(11, 10), 12: process(12, 1, lives=False)}
    monkeypatch.setattr(descendants, "children_now", lambda: lists.__getitem__)
    monkeypatch.setattr(descendants, "look", seen.get)
    assert [each.pid for each in descendants.descendants([1], spared=[10])] == [11]
