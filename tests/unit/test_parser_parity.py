"""Every flag and PET_* variable of the installed torchrun means the same to ``rdzv-run``."""

import argparse
import itertools

import pytest
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from rdzv_launcher.run.arguments import build_parser, parse_arguments

UNSET_UNLESS_GIVEN = {"master_addr", "master_port", "node_rank", "rdzv_backend", "rdzv_id", "local_addr"}
"""Here None means "not given": the launcher has to tell a default from a choice."""

SAMPLES = {
    "nnodes": "2:4",
    "nproc_per_node": "auto",
    "rdzv_conf": "timeout=30,rank=1",
    "start_method": "fork",
    "numa_binding": "node",
    "redirects": "0:1,1:2",
    "duplicate_stdout_filters": "apple,pe,,ar",
    "signals_to_handle": "SIGTERM,SIGUSR1",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for action in get_args_parser()._actions:
        monkeypatch.delenv(f"PET_{action.dest.upper()}", raising=False)


def optional(parser):
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def same_kind(torchs, ours):
    """All that an option is, but for its default; its type by name, as torch makes one type afresh each time."""
    facts = ("dest", "nargs", "const", "choices", "required", "metavar", "help")
    assert type(ours) is type(torchs)
    assert [getattr(ours, fact) for fact in facts] == [getattr(torchs, fact) for fact in facts]
    assert getattr(ours.type, "__name__", None) == getattr(torchs.type, "__name__", None)


def sample(action):
    number = {int: "7", float: "0.5"}.get(action.type)
    return SAMPLES.get(action.dest) or number or "text"


def parsed_by_both(argv):
    """torch's namespace, and ours less our own options."""
    torchs = vars(get_args_parser().parse_args(argv))
    ours = vars(parse_arguments(argv))
    return torchs, {dest: ours[dest] for dest in torchs}


OPTIONS = optional(get_args_parser())
SPELLINGS = [(spelling, action.dest) for action in OPTIONS for spelling in action.option_strings]
FROM_ENVIRONMENT = [action.dest for action in OPTIONS if isinstance(action, env | check_env)]


def action_of(dest):
    (action,) = [action for action in OPTIONS if action.dest == dest]
    return action


@pytest.mark.parametrize(("spelling", "dest"), SPELLINGS, ids=[spelling for spelling, _ in SPELLINGS])
def test_every_spelling_of_torchs_options_is_the_same_option_here(spelling, dest):
    ours = {s: action for action in build_parser()._actions for s in action.option_strings}
    same_kind(action_of(dest), ours[spelling])


def test_positional_arguments_are_torchs():
    torchs, ours = ([a for a in p._actions if not a.option_strings] for p in (get_args_parser(), build_parser()))
    for theirs, own in zip(torchs, ours, strict=True):
        same_kind(theirs, own)


def test_defaults_are_torchs_but_for_those_that_are_unset_unless_given():
    torchs, ours = parsed_by_both(["train.py"])
    differ = {dest for dest in torchs if ours[dest] != torchs[dest]}
    assert differ <= UNSET_UNLESS_GIVEN
    assert {dest for dest in UNSET_UNLESS_GIVEN if ours[dest] is not None} == set()


@pytest.mark.parametrize(("spelling", "dest"), SPELLINGS, ids=[spelling for spelling, _ in SPELLINGS])
@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_given_value_is_read_as_torch_reads_it(spelling, dest, joined):
    action = action_of(dest)
    if action.nargs == 0:
        argv = [spelling]
    elif joined and spelling.startswith("--"):
        argv = [f"{spelling}={sample(action)}"]
    else:
        argv = [spelling, sample(action)]
    torchs, ours = parsed_by_both([*argv, "train.py", "--lr", "0.1", spelling])
    assert ours[dest] == torchs[dest]
    assert ours[dest] not in (None, action.default)
    assert ours["training_script_args"] == ["--lr", "0.1", spelling]


@pytest.mark.parametrize("dest", FROM_ENVIRONMENT)
def test_variable_is_read_as_torch_reads_it(dest, monkeypatch):
    action = action_of(dest)
    monkeypatch.setenv(f"PET_{dest.upper()}", "1" if action.nargs == 0 else sample(action))
    torchs, ours = parsed_by_both(["train.py"])
    assert ours[dest] == torchs[dest]
    assert ours[dest] not in (None, action.default)


@pytest.mark.parametrize("dest", FROM_ENVIRONMENT)
def test_flag_wins_over_the_variable(dest, monkeypatch):
    action = action_of(dest)
    flag = action.nargs == 0
    monkeypatch.setenv(f"PET_{dest.upper()}", "0" if flag else "9")
    spelling = action.option_strings[0]
    torchs, ours = parsed_by_both([spelling, *([] if flag else [sample(action)]), "train.py"])
    assert ours[dest] == torchs[dest]


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes", "2", "--nproc_per_node=4", "--master_addr=10.0.0.1", "--master-port", "29501", "t.py", "-v"],
        ["--rdzv_backend=c10d", "--rdzv-endpoint=h:1", "--rdzv_id=7", "--rdzv-conf=a=1,b=2", "-m", "pkg.mod", "x"],
        ["--standalone", "-r", "3", "-t", "0:1", "--no_python", "./run.sh", "--", "--rdzv-strict"],
        ["--max-restarts=3", "--monitor_interval", "5", "--log_dir=/tmp", "--role", "trainer", "t.py"],
    ],
)
def test_whole_command_lines_mean_the_same(argv):
    torchs, ours = parsed_by_both(argv)
    given = {d for d in torchs if ours[d] is not None or d not in UNSET_UNLESS_GIVEN}
    assert {d: ours[d] for d in given} == {d: torchs[d] for d in given}
    assert {d: torchs[d] for d in set(torchs) - given} == {d: action_of(d).default for d in set(torchs) - given}


def test_value_out_of_torchs_choices_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments(["--start-method=teleport", "train.py"])
    assert end.value.code == 2
    assert "--start-method" in capsys.readouterr().err


def test_our_own_options_take_no_spelling_of_torchs():
    torchs = {spelling for spelling, _ in SPELLINGS}
    ours = set(itertools.chain(*(action.option_strings for action in optional(build_parser())))) - torchs
    assert ours == {
        "--check",
        "--version",
        "--exit-barrier-timeout",
        "--exit_barrier_timeout",
        "--enable-tiered-parallel-tcpstore",
        "--enable_tiered_parallel_tcpstore",
        "--rdzv-no-plugin",
        "--rdzv_no_plugin",
        "--rdzv-strict",
        "--rdzv_strict",
        "-v",
        "--verbose",
    }


def test_both_spellings_of_our_own_options_work():
    dashed = parse_arguments(["--rdzv-no-plugin=a", "--rdzv-strict", "--exit-barrier-timeout=5", "t.py"])
    scored = parse_arguments(["--rdzv_no_plugin", "a", "--rdzv_strict", "--exit_barrier_timeout", "5", "t.py"])
    assert isinstance(dashed, argparse.Namespace)
    assert dashed == scored
    assert (dashed.rdzv_no_plugin, dashed.rdzv_strict, dashed.exit_barrier_timeout) == (["a"], True, 5.0)
