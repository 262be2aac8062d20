"""Planted defects: what the simulation has to find. Each is a piece of a source file of ``src`` and what it becomes.

A piece must be in its file exactly once: a test says when a change of the file has made it another.

The first 25 take back mendings of this repository's history; ``origin`` is the commit that mended it.

The others were drawn at commit 1c9fcc6 by ``random.Random(38).sample`` from 1,956 places, in the order of files, lines
and columns: each ``if`` (``if False``), comparison (``<`` for ``<=``, ``!=`` for ``==`` and so on), ``and`` or ``or``
of two (the other), and call whose result is not used (left out), on one line, in ``elastic`` with ``leading`` and
``liveness``, ``backends/static``, ``rounds``, ``run/agent``, ``run/fence`` and the agent's side of the keeper, but for
lines about logging, messages, several endpoints, trials and domains. ``origin`` is the place in the sample. Passed
over are 5 (several endpoints), 6 and 13 (a difference of one instant), 7 (a message), 25 (metrics) and 27 (trials).
"""

from __future__ import annotations

from simulation.planting import Defect

_AGENT = "launcher/rdzv_launcher/run/agent/"
_KEEPER = "launcher/rdzv_launcher/run/keeper/"
_ELASTIC = "rdzv_plugins/elastic/"
_LEADING = "rdzv_plugins/elastic/leading/"
_STATIC = "rdzv_plugins/backends/static/"

DEFECTS = (
    Defect(
        "who ends by its own error tells nobody",
        "58f658c",
        _AGENT + "decisions.py",
        'tells = self._stage == "working" and not',
        "tells = False and not",
        "test_a_node_that_ends_by_an_error_of_its_own_is_no_failure_of_the_others",
    ),
    Defect(
        "a supervisor lost in a start looks like a signal",
        "1e50649",
        _AGENT + "node_workers.py",
        "self._lose(str(error), error.exit_code)",
        "self._lose(str(error))",
        "test_without_a_restart_a_supervisor_that_is_lost_while_it_starts_workers_ends_the_job_with_71",
    ),
    Defect(
        "who has left waits for the service",
        "11653c5",
        _ELASTIC + "losses.py",
        "if self._link.is_closed:",
        "if False:",
        "test_a_node_that_has_left_waits_for_no_answer",
    ),
    Defect(
        "static: the cause is gone with node rank 0",
        "293548d",
        _STATIC + "handler.py",
        "if isinstance(self._problem, errors.PeerFailed):",
        "if False:",
        "test_whoever_asks_for_the_cause_when_node_rank_0_has_left_knows_it_from_the_end",
    ),
    Defect(
        "static: a host that is gone is waited for",
        "40b25c4",
        "rdzv_plugins/rounds/presence.py",
        "reason in (REFUSED, NO_ANSWER)",
        "reason == REFUSED",
        "test_a_host_of_node_rank_0_that_is_gone_is_noticed_in_every_stage",
    ),
    Defect(
        "an outage is not shared",
        "cc5dd8e",
        _ELASTIC + "handler.py",
        'self._in_background("share outage", self._self.say)',
        "pass",
        "test_an_outage_is_one_for_all_nodes_whoever_needs_the_service_first",
    ),
    Defect(
        "static: a second agent gets ahead of the first",
        "e51d291",
        _STATIC + "handler.py",
        "if self._round < round_ - 1:",
        "if round_ > newest:",
        "test_one_whose_process_has_ended_on_the_same_machine_is_not_waited_for",
    ),
    Defect(
        "sessions that are never kept alive go on for ever",
        "29ab165",
        _ELASTIC + "link.py",
        "again = since <= self._recovered_at and self.places is None",
        "again = False",
    ),
    Defect(
        "an outage uses up the time to join",
        "8999a1a",
        _ELASTIC + "joining.py",
        "if now >= deadline and self._link.is_out:",
        "if False:",
        "test_an_outage_uses_up_no_time_to_join",
    ),
    Defect(
        "in an outage nobody works",
        "8999a1a",
        _ELASTIC + "handler.py",
        'return ["nodes that nobody can ask for now"]',
        "return ()",
        "test_who_is_done_waits_for_others_whom_nobody_can_ask",
    ),
    Defect(
        "static: who leaves is no loss",
        "6cbb300",
        _STATIC + "handler.py",
        'return over is not None and over.lost != "" and over.incarnation != self._me.incarnation',
        "return False",
        "test_who_leaves_uses_no_restart_of_one_whose_workers_fail_before_it_has_heard",
    ),
    Defect(
        "workers that the fence has killed have failed",
        "ea2ebb9",
        _AGENT + "decisions.py",
        'return self._stop(Signals.SIGKILL, "join", now)',
        'return self._stop(Signals.SIGKILL, "ask", now)',
    ),
    Defect(
        "a forgotten sequel of a list ends the leader",
        "0eb277a",
        _ELASTIC + "keys.py",
        "            if not left:  # it always says so\n                raise",
        "            raise",
    ),
    Defect(
        "background processes stay",
        "81b10e8",
        _AGENT + "decisions.py",
        'last = following in ("stay", "leave") and',
        "last = False and",
        "test_what_workers_leave_in_the_background_may_end_by_itself",
    ),
    Defect(
        "a round begins beside who may be at work",
        "cd79e4b",
        _LEADING + "kept_round.py",
        "self._waits = in_time and not self._all_accounted()",
        "self._waits = False",
    ),
    Defect(
        "news of an earlier session counts",
        "2ed26aa",
        _ELASTIC + "view.py",
        "if session != self._session:",
        "if False:",
    ),
    Defect(
        "a silent supervisor is not ended",
        "ae7d9d5",
        _KEEPER + "keeper.py",
        "if heartbeat.unanswered >= SILENT_S:",
        "if False:",
    ),
    Defect(
        "a supervisor lost in a start is an error",
        "ae7d9d5",
        _AGENT + "node_workers.py",
        "except KeeperLost as error:",
        "except ZeroDivisionError as error:",
        "test_a_supervisor_that_is_lost_while_it_starts_workers_costs_a_restart",
    ),
    Defect(
        "a leader leaves before it says why",
        "f1148bf",
        _ELASTIC + "leaving.py",
        "                self._wait_declared()",
        "                pass",
    ),
    Defect(
        "what was under way revives the dead",
        "80887e5",
        _LEADING + "member_watch.py",
        "if node in self._gone:",
        "if False:",
    ),
    Defect(
        "who does not come is waited for",
        "9a6258b",
        _LEADING + "membership.py",
        "if not self._is_late() or self._act_by is None or now < self._act_by:",
        "if True:",
        "test_a_node_that_does_not_join_again_is_left_out_after_a_while",
    ),
    Defect(
        "a newcomer need not reach the store",
        "9a6258b",
        _LEADING + "membership.py",
        "elif (has_dialled or ahead) and self._grows(here):",
        "elif self._grows(here):",
        "test_a_spare_that_cannot_reach_the_round_costs_it_nothing",
    ),
    Defect(
        "the same revision of another server is taken",
        "38b9a40",
        _LEADING + "leader.py",
        "return self._session is session and self._key == key",
        "return self._key == key",
    ),
    Defect(
        "a session that is lost at once ends the first join",
        "559ac3b",
        _ELASTIC + "link.py",
        "            except (ConnectionLost, TimeoutError) as error:\n                fault",
        "            except ZeroDivisionError as error:\n                fault",
    ),
    Defect(
        "a signal in a wait is an error",
        "e660428",
        _AGENT + "loop.py",
        "return None if self._signals.pending else events.Failed(error)",
        "return events.Failed(error)",
        "test_a_signal_ends_a_node_whatever_it_is_doing",
    ),
    Defect(
        "static: who is done counts as working",
        "drawn 0",
        _STATIC + "peers.py",
        "if rank in busy and rank != self._rank]",
        "if rank not in busy and rank != self._rank]",
        "test_node_rank_0_stays_while_others_work",
    ),
    Defect(
        "a round that nobody reaches is not declared failed",
        "drawn 1",
        _LEADING + "membership.py",
        'self._declare(Round(self._number, "failed", len(self._plan), why))',
        "pass",
    ),
    Defect(
        "nobody has had a rank before",
        "drawn 2",
        _LEADING + "ranks.py",
        "if node_id not in self._by_id:",
        "if False:",
        "test_a_node_that_stood_still_returns_with_its_rank",
    ),
    Defect(
        "a signal while the cause is asked for is an outage",
        "drawn 3",
        _AGENT + "failures.py",
        "            if is_signal(error):",
        "            if False:",
    ),
    Defect(
        "a node with a notice asks like any other",
        "drawn 4",
        _AGENT + "decisions.py",
        "        if self._kill_by is not None:\n            return self._join()\n        if lost:",
        "        if False:\n            return self._join()\n        if lost:",
    ),
    Defect(
        "only the end with the background counts",
        "drawn 8",
        _AGENT + "decisions.py",
        "background >= self._background",
        "background > self._background",
    ),
    Defect(
        "sessions are ended where that is not possible",
        "drawn 9",
        _LEADING + "session_ends.py",
        "if not isinstance(self._session, EndsSessions):",
        "if False:",
    ),
    Defect(
        "a forgotten round that is whole does not go on",
        "drawn 10",
        _LEADING + "membership.py",
        '        if verdict == "whole":\n            self._complete(first, now)',
        '        if verdict == "whole":\n            pass',
        "test_a_round_goes_on_over_a_restart_of_the_service",
    ),
    Defect(
        "news do not end waits in the store",
        "drawn 11",
        _ELASTIC + "handler.py",
        "        self._watch_leader()\n        self._end_vain_waits()",
        "        self._watch_leader()\n        pass",
    ),
    Defect(
        "static: any node's time-out ends the job",
        "drawn 12",
        _STATIC + "handler.py",
        "if self._rank == 0 and self._record is not None:",
        "if self._rank == 0 or self._record is not None:",
    ),
    Defect(
        "who has led does not lead again",
        "drawn 14",
        _ELASTIC + "link.py",
        "            if self._leader is not None and self._leader.stuck:",
        "            if self._leader is not None or self._leader.stuck:",
        "test_a_job_begins_at_once_when_all_have_come",
    ),
    Defect(
        "static: nobody asks who had the rank",
        "drawn 15",
        _STATIC + "handler.py",
        "if self._round < round_ - 1:",
        "if False:",
    ),
    Defect(
        "who has reached the store is not counted",
        "drawn 16",
        _LEADING + "membership.py",
        "self._has_reached(member, now)",
        "pass",
    ),
    Defect(
        "who was gone once stays gone",
        "drawn 17",
        _LEADING + "member_watch.py",
        "        self._gone.discard(node)",
        "        pass",
    ),
    Defect(
        "places of other rounds are accounted for",
        "drawn 18",
        _LEADING + "kept_round.py",
        "if seat.round != self.number:",
        "if False:",
    ),
    Defect(
        "a signal is taken for a second one",
        "drawn 19",
        _AGENT + "decisions.py",
        "        if not again:",
        "        if False:",
    ),
    Defect(
        "who is gone is watched further",
        "drawn 20",
        _LEADING + "member_watch.py",
        "        self._forget(node)\n        self._gone.add(node)",
        "        self._gone.add(node)",
    ),
    Defect(
        "static: the own run is refused",
        "drawn 21",
        _STATIC + "handler.py",
        "if hello.run_id != self._request.run_id:",
        "if hello.run_id == self._request.run_id:",
    ),
    Defect(
        "restarts only beside workers that do not end",
        "drawn 22",
        _AGENT + "decisions.py",
        'if self._used < self._limits.max_restarts and self._group == "gone":',
        'if self._used < self._limits.max_restarts and self._group != "gone":',
    ),
    Defect(
        "the end of a round is not declared before places",
        "drawn 23",
        _LEADING + "leader.py",
        'if decisions.round is not None and decisions.round.state == "over":',
        "if False:",
    ),
    Defect(
        "a node is dialled by no name",
        "drawn 24",
        "rdzv_plugins/elastic/liveness/dial.py",
        "self._name = peer.name or peer.node_id",
        "self._name = peer.name and peer.node_id",
    ),
    Defect(
        "static: who waits is not told of the end",
        "drawn 26",
        _STATIC + "handler.py",
        "                self._rounds_().settle(self._rounds_().latest(), Go(ended=outcome))\n            elif",
        "            elif",
    ),
    Defect(
        "a node says nothing of itself",
        "drawn 28",
        _ELASTIC + "myself.py",
        "            self.me = replace(self.me, **changes)\n            self._write()",
        "            self.me = replace(self.me, **changes)",
    ),
    Defect(
        "a stopped supervisor is not continued",
        "drawn 29",
        _KEEPER + "keeper.py",
        "            self._signal_keeper(Signals.SIGCONT)",
        "            pass",
    ),
    Defect(
        "static: settings are not compared",
        "drawn 30",
        _STATIC + "handler.py",
        "if_refused.callback(store.close)\n                self._compare(store.client)",
        "if_refused.callback(store.close)",
    ),
)

NOT_FOUND: dict[str, str] = {}
"""Those that neither a scenario nor a seed of the gate finds, and why."""
