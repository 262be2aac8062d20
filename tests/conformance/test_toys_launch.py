"""Theme *launch* finds what only real launchers and workers meet. And its own parts: how agents start and end."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from kits.conformance.toy_kit import check

from rdzv_plugins.testing.agents.agent import Agents
from rdzv_plugins.testing.agents.processes import wait_until

pytestmark = pytest.mark.thorough

RESTART = "test_worker_that_is_killed_costs_one_restart_and_all_meet_in_a_fresh_store"
FAILURE = "test_failure_for_good_ends_the_job_on_every_node_with_its_exit_code"
STOPPED = "test_agent_that_is_told_to_stop"
RANK = "test_given_node_rank"


def test_store_of_the_first_round_in_the_second(tmp_path: Path) -> None:
    """torch's own handler, as 2.13 has it."""
    checked = check(tmp_path, "store_of_torch", "launch", harness="StateHarness", k=RESTART)
    checked.must_fail(RESTART)
    # or a worker goes on asking for the store of the first round when that has gone
    seen = ("has found its key of an earlier round in the store of this one", " still runs after ")
    assert any(fault in checked.tests[RESTART]["message"] for fault in seen), checked.tests[RESTART]


def test_failure_elsewhere_that_ends_a_node_with_0(tmp_path: Path) -> None:
    checked = check(
        tmp_path, "launch_ends_well", "launch", harness="HandlerHarness", k=f"{FAILURE} or {STOPPED} or {RANK}"
    )
    checked.must_fail(FAILURE, STOPPED)
    assert "a worker ended with 9 for good, the launchers with [0, 9]" in checked.tests[FAILURE]["message"]
    assert "is not told that the first has got SIGTERM" in checked.tests[STOPPED]["message"]
    assert checked.names("passed") == {RANK}


def test_given_rank_that_does_not_count(tmp_path: Path) -> None:
    checked = check(tmp_path, "launch_ignores_rank", "launch", k=RANK)
    checked.must_fail(RANK, saying="given were node ranks 1 and 0, the nodes are ['0', '1']")


def test_agents_are_warm_where_their_variables_allow_it_and_none_outlives_close(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, time\n"
        "above = open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]\n"
        "print(f'started by the keeper of {above}', flush=True)\n"
        "time.sleep(600)\n"
    )
    with closing(Agents(tmp_path)) as agents:
        warm, cold = agents.launch("rdzv-run", [script]), agents.launch("rdzv-run", [script], PYTHONHASHSEED="1")
        assert (warm.is_warm, cold.is_warm) == (True, False)
        for agent in (warm, cold):
            agent.wait_for(rf"started by the keeper of {agent.pid}\b")
        assert "libtorch" not in Path(f"/proc/{warm.pid}/maps").read_text(), (
            "nobody wants it: it costs half of an agent"
        )
        # two agents, each with a keeper and a worker
        wait_until(lambda: len(agents.processes()) == 6, 60, lambda: f"{agents.processes()}")
        os.kill(warm.pid, 9)  # its worker goes with it
        assert warm.wait() == -9
        wait_until(lambda: len(agents.processes()) == 3, 60, lambda: f"the other and its worker: {agents.processes()}")
    assert agents.processes() == {}
