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

from rdzv_launcher.python_api.config import LaunchConfig
from rdzv_launcher.run.options import KEYS, OPTIONS, kind_of, variables_of
from rdzv_launcher.run.parser import build_parser, parse_arguments, read_keys
from rdzv_plugins.errors import UsageError

UNSET_UNLESS_GIVEN = {"master_addr", "node_rank", "rdzv_backend", "rdzv_id"} | {
    f"duplicate_{name}_filters" for name in ("stdout", "stderr")
}
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
    for name in OPTIONS:
        for variable in variables_of(name):
            monkeypatch.delenv(variable, raising=False)


def optional(parser):
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def samples(action):
    return SAMPLES.get(action.dest) or TEXTS.get(action.type) or ["text", "with space", "x=y"]


def differences(torchs, ours):
    """All that an option is, but for its help; its type by name, as torch makes one type afresh each time."""
    found = [(fact, getattr(torchs, fact), getattr(ours, fact)) for fact in FACTS]
    found.append(("type", *(getattr(each.type or str, "__name__", None) for each in (torchs, ours))))
    found.append(("spellings", set(torchs.option_strings), set(ours.option_strings)))
    reads = ours.dest in OPTIONS and variables_of(ours.dest) != []
    found.append(("reads a variable", isinstance(torchs, env | check_env), reads))
    if torchs.dest not in UNSET_UNLESS_GIVEN:
        found.append(("default", torchs.default, ours.default))
    return [
        f"{torchs.dest}: {fact}: torchrun's is {theirs!r}, ours {own!r}" for fact, theirs, own in found if theirs != own
    ]


def parsed_by_both(argv):
    """torch's namespace, and ours less our own options."""
    torchs = vars(get_args_parser().parse_args(argv))
    ours = parse_arguments(argv)
    return torchs, {dest: getattr(ours, dest) for dest in torchs}


TORCHS = optional(get_args_parser())
ENDS = "print_completion"
SPELLINGS = [(spelling, each) for each in TORCHS for spelling in each.option_strings if each.dest != ENDS]
FROM_ENVIRONMENT = {each.dest: each for each in TORCHS if isinstance(each, env | check_env)}


def test_every_option_and_field_of_torchs_is_one_of_ours():
    ours = {action.dest: action for action in build_parser()._actions}
    assert [action.dest for action in TORCHS if action.dest not in ours] == []
    assert [each for action in TORCHS for each in differences(action, ours[action.dest])] == []
    theirs, own = ({each.name: each for each in dataclasses.fields(cls)} for cls in (TorchsLaunchConfig, LaunchConfig))
    assert [(name, each.init) for name, each in own.items()] == [(name, each.init) for name, each in theirs.items()]
    assert {name for name in own if own[name].default != theirs[name].default} == {"rdzv_backend"}


@pytest.mark.parametrize(("spelling", "action"), SPELLINGS, ids=[spelling for spelling, _ in SPELLINGS])
def test_given_value_is_read_as_torch_reads_it(spelling, action):
    dest, joint = action.dest, "=" if spelling.startswith("--") else ""
    given = [each for text in samples(action) for each in ([spelling, text], [f"{spelling}{joint}{text}"])]
    for argv in given if action.nargs != 0 else [[spelling]]:
        torchs, ours = parsed_by_both([*argv, "train.py", "--lr", "0.1", spelling])
        assert (ours[dest], type(ours[dest])) == (torchs[dest], type(torchs[dest])), argv
        assert ours["training_script_args"] == ["--lr", "0.1", spelling]
        assert dest in parse_arguments([*argv, "train.py"]).given
    assert dest not in parse_arguments(["train.py"]).given


@pytest.mark.parametrize("dest", FROM_ENVIRONMENT)
def test_variable_is_read_as_torch_reads_it_and_a_flag_wins_over_it(dest, monkeypatch):
    action = FROM_ENVIRONMENT[dest]
    flag = action.nargs == 0
    argv = [action.option_strings[0], *([] if flag else [samples(action)[0]]), "train.py"]
    for text in ["1", "0", "2", " 1", "-1"] if flag else samples(action):
        monkeypatch.setenv(f"PET_{dest.upper()}", text)
        torchs, ours = parsed_by_both(["train.py"])
        assert (ours[dest], type(ours[dest])) == (torchs[dest], type(torchs[dest])), text
        assert parse_arguments(["train.py"]).given[dest] == f"PET_{dest.upper()}"
        torchs, ours = parsed_by_both(argv)
        assert ours[dest] == torchs[dest]
        assert parse_arguments(argv).given[dest].startswith("--")


@pytest.mark.parametrize("action", [each for each in TORCHS if each.type in WRONG], ids=lambda each: each.dest)
def test_value_of_a_wrong_type_is_refused_and_its_source_named(action, monkeypatch, capsys):
    wrong, variable = WRONG[action.type], f"PET_{action.dest.upper()}"
    with pytest.raises(SystemExit, match="2"):
        parse_arguments([f"{action.option_strings[0]}={wrong}", "train.py"])
    assert f"invalid {action.type.__name__} value: '{wrong}'" in capsys.readouterr().err
    monkeypatch.setenv(variable, wrong)
    with pytest.raises(UsageError, match=f"^{variable}={wrong}: not a valid {action.type.__name__}"):
        parse_arguments(["train.py"])


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes", "2", "--nproc_per_node=4", "--master_addr=10.0.0.1", "--master-port", "29501", "t.py", "-v"],
        ["--rdzv_backend=c10d", "--rdzv-endpoint=h:1", "--rdzv_id=7", "--rdzv-conf=a=1,b=2", "-m", "pkg.mod", "x"],
        ["--standalone", "-r", "3", "-t", "0:1", "--no_python", "./run.sh", "--", "--rdzv-strict"],
        ["--max-restarts=3", "--monitor_interval", "5", "--log_dir=/tmp", "--role", "trainer", "t.py"],
        ["--nnode", "3", "--stand", "--redir=1", "t.py"],  # cut short, as long as it is clear
        *(["-mr3", "pkg.mod"], ["-mr", "3", "pkg.mod"], ["--", "t.py", "--", "--nnodes=3"], ["-", "--nnodes=3"]),
    ],
)
def test_whole_command_lines_mean_the_same(argv):
    torchs, ours = parsed_by_both(argv)
    for action in TORCHS:
        here, there = ours[action.dest], torchs[action.dest]
        unset = action.dest in UNSET_UNLESS_GIVEN and here is None
        assert there == (action.default if unset else here), action.dest


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
        assert not args.given.keys() & {"preload", "tee", "verbose", "check", "node_rank"}, word


VALUES = {bool: ("1", "0"), float: ("5.0", "6.0"), int: ("5", "6")}


def texts_of(name):
    kind, choices = kind_of(name)
    return choices or VALUES.get(kind) or ("a", "b")


@pytest.mark.parametrize("name", [name for name in OPTIONS if len(variables_of(name)) > 1])
def test_own_variable_wins_over_the_one_of_another_name(name, monkeypatch):
    own, other = variables_of(name)
    first, second = texts_of(name)
    kind, _ = kind_of(name)
    for variable, text in ((other, first), (own, second)):
        monkeypatch.setenv(variable, text)
        args = parse_arguments(["t.py"])
        assert args.given[name] == variable
        assert str(int(getattr(args, name)) if kind is bool else getattr(args, name)).strip() in (text, "on", "")


@pytest.mark.parametrize("name", sorted(KEYS))
def test_key_counts_where_neither_flag_nor_variable_is_given(name, monkeypatch):
    text = texts_of(name)[0]
    args = parse_arguments([f"--rdzv-conf={name}={text}", "t.py"])
    read_keys(args)
    assert str(int(value) if isinstance(value := getattr(args, name), bool) else value) == text
    assert args.given[name] == f"--rdzv-conf {name}"
    if variables_of(name):
        monkeypatch.setenv(variables_of(name)[0], text)
        args = parse_arguments([f"--rdzv-conf={name}={texts_of(name)[1]}", "t.py"])
        before = getattr(args, name)
        read_keys(args)
        assert (getattr(args, name), args.given[name]) == (before, variables_of(name)[0])
    if OPTIONS[name].metadata["minimum"] is not None:
        with pytest.raises(UsageError, match=f"{name}=-1 "):
            read_keys(parse_arguments([f"--rdzv-conf={name}=-1", "t.py"]))


def test_parts_of_a_list_are_separated_by_colons_in_a_key():
    args = parse_arguments(["--rdzv-conf=ranks_filter=0:8-15,timeline=/a:b", "t.py"])
    read_keys(args)
    assert (args.ranks_filter, args.timeline) == ("0,8-15", "/a:b")


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
        ("--preflight train.py", "on", "train.py"),
        ("--preflight --nnodes 2 train.py --preflight", "on", "train.py --preflight"),
        ("--nnodes 2 --preflight=disk,cpu train.py", "disk,cpu", "train.py"),
        ("train.py --preflight", "", "train.py --preflight"),
        ("-m --preflight module 1", "on", "module 1"),
    ],
)
def test_a_flag_that_may_go_without_a_value_does_not_take_the_script_for_one(argv, expected, script) -> None:
    args = parse_arguments(argv.split())
    assert (args.preflight, [args.training_script, *args.training_script_args]) == (expected, script.split())
    with pytest.raises(SystemExit):
        parse_arguments(["--role", "--preflight", "train.py", "--preflight"])
