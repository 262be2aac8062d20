"""Every flag and PET_* variable of the installed torchrun means the same to ``rdzv-run``, which declares its own.

What torch's parser has is walked here, and a difference is told by flag and fact. Two things are meant to differ: the
texts of the help (``help``, ``metavar``), and the defaults of ``UNSET_UNLESS_GIVEN``.
"""

from __future__ import annotations

import dataclasses

import pytest
from kits.messages import check_message
from torch.distributed.argparse_util import check_env, env
from torch.distributed.launcher.api import LaunchConfig as TorchsLaunchConfig
from torch.distributed.run import get_args_parser

from rdzv_launcher.call.config import LaunchConfig
from rdzv_launcher.run.command_line.options import Switch, Value
from rdzv_launcher.run.command_line.parser import build_parser
from rdzv_launcher.run.command_line.parsing import parse_arguments
from rdzv_plugins.errors import UsageError

UNSET_UNLESS_GIVEN = {"master_addr", "node_rank", "rdzv_backend", "rdzv_id"}
"""Here None means "not given": the launcher has to tell a default from a choice."""


FACTS = ("dest", "nargs", "const", "choices", "required")

SAMPLES = {
    "nnodes": ["2:4", "1", ""],
    "nproc_per_node": ["auto", "8"],
    "rdzv_conf": ["timeout=30,rank=1", "a=b=c"],
    "start_method": ["fork", "forkserver", "spawn"],
    "numa_binding": ["node", "core-complex"],
    "redirects": ["0:1,1:2", "3"],
    "duplicate_stdout_filters": ["apple,pe,,ar", "", ",", ",,,", "a,,,b,", "a,,b"],
    "duplicate_stderr_filters": ["apple,pe,,ar", "one"],
    "signals_to_handle": ["SIGTERM,SIGUSR1"],
}
"""Values of the options; of others those of their types."""
TEXTS = {int: ["7", "-1", " 3 "], float: ["0.5", "1e3", "2"]}
WRONG = {int: "3.5", float: "soon"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for action in get_args_parser()._actions:
        monkeypatch.delenv(f"PET_{action.dest.upper()}", raising=False)
    monkeypatch.delenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", raising=False)


def optional(parser):
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def samples(action):
    return SAMPLES.get(action.dest) or TEXTS.get(action.type) or ["text", "with space", "x=y"]


def differences(torchs, ours):
    """All that an option is, but for its help; its type by name, as torch makes one type afresh each time."""
    found = [(fact, getattr(torchs, fact), getattr(ours, fact)) for fact in FACTS]
    found.append(("type", *(getattr(each.type or str, "__name__", None) for each in (torchs, ours))))
    found.append(("spellings", set(torchs.option_strings), set(ours.option_strings)))
    found.append(("reads a variable", isinstance(torchs, env | check_env), isinstance(ours, Value | Switch)))
    if torchs.dest not in UNSET_UNLESS_GIVEN:
        found.append(("default", torchs.default, ours.default))
    return [f"{fact}: torchrun's is {theirs!r}, ours {own!r}" for fact, theirs, own in found if theirs != own]


def parsed_by_both(argv):
    """torch's namespace, and ours less our own options."""
    torchs = vars(get_args_parser().parse_args(argv))
    ours = vars(parse_arguments(argv))
    return torchs, {dest: ours.get(dest, "missing") for dest in torchs}


OPTIONS = optional(get_args_parser())
ENDS = "print_completion"
SPELLINGS = [(spelling, each.dest) for each in OPTIONS for spelling in each.option_strings if each.dest != ENDS]
FROM_ENVIRONMENT = [action.dest for action in OPTIONS if isinstance(action, env | check_env)]


def action_of(dest):
    (action,) = [action for action in OPTIONS if action.dest == dest]
    return action


def test_every_option_of_torchs_is_one_of_ours():
    ours = {action.dest: action for action in build_parser()._actions}
    missing = [f"{'/'.join(action.option_strings)} is missing" for action in OPTIONS if action.dest not in ours]
    differ = [
        f"{'/'.join(action.option_strings)}: {difference}"
        for action in OPTIONS
        if action.dest in ours
        for difference in differences(action, ours[action.dest])
    ]
    assert not missing + differ, "\n".join(missing + differ)


def test_every_field_of_torchs_launch_config_is_one_of_ours():
    ours, theirs = ({each.name for each in dataclasses.fields(cls)} for cls in (LaunchConfig, TorchsLaunchConfig))
    assert not theirs - ours, f"missing in LaunchConfig: {', '.join(sorted(theirs - ours))}"


def test_positional_arguments_are_torchs():
    torchs, ours = ([a for a in p._actions if not a.option_strings] for p in (get_args_parser(), build_parser()))
    for theirs, own in zip(torchs, ours, strict=True):
        assert differences(theirs, own) == []


@pytest.mark.parametrize(("spelling", "dest"), SPELLINGS, ids=[spelling for spelling, _ in SPELLINGS])
def test_given_value_is_read_as_torch_reads_it(spelling, dest):
    action = action_of(dest)
    joint = "=" if spelling.startswith("--") else ""
    given = [each for text in samples(action) for each in ([spelling, text], [f"{spelling}{joint}{text}"])]
    for argv in given if action.nargs != 0 else [[spelling]]:
        torchs, ours = parsed_by_both([*argv, "train.py", "--lr", "0.1", spelling])
        assert ours[dest] == torchs[dest], argv
        assert type(ours[dest]) is type(torchs[dest]), argv
        assert ours["training_script_args"] == ["--lr", "0.1", spelling]
        assert dest in parse_arguments([*argv, "train.py"]).given
    assert dest not in parse_arguments(["train.py"]).given


@pytest.mark.parametrize("dest", FROM_ENVIRONMENT)
def test_variable_is_read_as_torch_reads_it_and_a_flag_wins_over_it(dest, monkeypatch):
    action = action_of(dest)
    flag = action.nargs == 0
    argv = [action.option_strings[0], *([] if flag else [samples(action)[0]]), "train.py"]
    for text in ["1", "0", "2", " 1", "-1"] if flag else samples(action):
        monkeypatch.setenv(f"PET_{dest.upper()}", text)
        torchs, ours = parsed_by_both(["train.py"])
        assert ours[dest] == torchs[dest], text
        assert type(ours[dest]) is type(torchs[dest]), text
        assert dest in (args := parse_arguments(["train.py"])).given & args.by_variable
        torchs, ours = parsed_by_both(argv)
        assert ours[dest] == torchs[dest]
        assert dest in (args := parse_arguments(argv)).given - args.by_variable


@pytest.mark.parametrize("dest", [action.dest for action in OPTIONS if action.type in WRONG])
def test_value_of_a_wrong_type_is_refused_and_its_source_named(dest, monkeypatch, capsys):
    action = action_of(dest)
    wrong = WRONG[action.type]
    for parse in (get_args_parser().parse_args, parse_arguments):
        with pytest.raises(SystemExit) as end:
            parse([f"{action.option_strings[0]}={wrong}", "train.py"])
        assert end.value.code == 2
        assert f"invalid {action.type.__name__} value: '{wrong}'" in capsys.readouterr().err
    monkeypatch.setenv(f"PET_{dest.upper()}", wrong)
    with pytest.raises(UsageError, match=f"^PET_{dest.upper()}={wrong}: not a valid {action.type.__name__}"):
        parse_arguments(["train.py"])


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes", "2", "--nproc_per_node=4", "--master_addr=10.0.0.1", "--master-port", "29501", "t.py", "-v"],
        ["--rdzv_backend=c10d", "--rdzv-endpoint=h:1", "--rdzv_id=7", "--rdzv-conf=a=1,b=2", "-m", "pkg.mod", "x"],
        ["--standalone", "-r", "3", "-t", "0:1", "--no_python", "./run.sh", "--", "--rdzv-strict"],
        ["--max-restarts=3", "--monitor_interval", "5", "--log_dir=/tmp", "--role", "trainer", "t.py"],
        ["--nnode", "3", "--stand", "--redir=1", "t.py"],  # cut short, as long as it is clear
        ["-mr3", "pkg.mod"],
        ["-mr", "3", "pkg.mod"],
        ["--", "t.py", "--", "--nnodes=3"],
        ["-", "--nnodes=3"],
    ],
)
def test_whole_command_lines_mean_the_same(argv):
    torchs, ours = parsed_by_both(argv)
    given = {d for d in torchs if ours[d] is not None or d not in UNSET_UNLESS_GIVEN}
    assert {d: ours[d] for d in given} == {d: torchs[d] for d in given}
    assert {d: torchs[d] for d in set(torchs) - given} == {d: action_of(d).default for d in set(torchs) - given}


OF_SCRIPTS = (
    "--p --pre --t --h --he --ver --w=3 --ra --ranks --en --ex --r=16 --e --n --m --log --v --s --d --no --l=2 --max"
)


@pytest.mark.parametrize(
    "flags", [[], ["--nnode=3", "-r", "3"], ["--preflight", "-m"]], ids=["bare", "flags", "module"]
)
def test_whatever_follows_the_script_is_the_scripts(flags):
    for word in [*OF_SCRIPTS.split(), "-h", "--help", "--version", "--check", "--bogus", "-1", "--preflight"]:
        args = parse_arguments([*flags, "s.py", word, "7"])
        assert (args.training_script, args.training_script_args) == ("s.py", [word, "7"])
        assert not args.given & {"preload", "tee", "verbose", "check", "node_rank"}, word


@pytest.mark.parametrize("of_torch", ["7.5", "long", None])
@pytest.mark.parametrize("ours", ["6", "long", None])
@pytest.mark.parametrize("flag", ["5", None])
def test_torchs_variable_of_the_exit_barrier_is_the_last_to_be_asked(flag, ours, of_torch, monkeypatch):
    for name, value in (("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", of_torch), ("PET_EXIT_BARRIER_TIMEOUT", ours)):
        if value:
            monkeypatch.setenv(name, value)
    argv = [*([f"--exit-barrier-timeout={flag}"] if flag else []), "t.py"]
    if (counts := flag or ours or of_torch or "300") == "long":
        name = "PET_EXIT_BARRIER_TIMEOUT" if ours else "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
        with pytest.raises(UsageError, match=f"^{name}=long: not a valid float"):
            parse_arguments(argv)
    else:
        assert parse_arguments(argv).exit_barrier_timeout == float(counts)


@pytest.mark.parametrize(
    "argv",
    [
        ["--bogus"],
        ["--bogus=3", "t.py"],
        ["--nnodes", "2", "--role=a", "--bogus", "t.py"],
        ["--nnode=2", "--standalone", "-m", "-r3", "--zzz=2", "t.py"],
        ["--nods=2", "t.py"],
        ["--rdzv_backed=c10d", "t.py"],
        ["-x", "t.py"],
        ["--nnodes=2"],
        ["--role", "--bogus", "t.py"],
        ["--rdzv", "c10d", "t.py"],
        ["--standalone=1", "t.py"],
    ],
)
def test_what_cannot_be_parsed_is_named(argv, capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments(argv)
    assert end.value.code == 2
    said = capsys.readouterr().err.partition("rdzv-run: error: ")[2].splitlines()[0]
    check_message(f"rdzv-run {' '.join(argv)}", said)


@pytest.mark.parametrize(
    ("argv", "expected", "script"),
    [
        (["--preflight", "train.py"], "on", ["train.py"]),
        (["--preflight", "--nnodes", "2", "train.py", "--preflight"], "on", ["train.py", "--preflight"]),
        (["--nnodes", "2", "--preflight=disk,cpu", "train.py"], "disk,cpu", ["train.py"]),
        (["--role", "--preflight", "train.py", "--preflight"], None, None),
        (["train.py", "--preflight"], "", ["train.py", "--preflight"]),
        (["-m", "--preflight", "module", "1"], "on", ["module", "1"]),
    ],
)
def test_a_flag_that_may_go_without_a_value_does_not_take_the_script_for_one(argv, expected, script) -> None:
    if expected is None:
        with pytest.raises(SystemExit):
            parse_arguments(argv)
        return
    args = parse_arguments(argv)
    assert (args.preflight, [args.training_script, *args.training_script_args]) == (expected, script)
