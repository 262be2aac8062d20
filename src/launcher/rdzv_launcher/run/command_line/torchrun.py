"""torchrun's part of the command line: its flags, their spellings and the values they take, as in torch 2.15.

A default of None where torchrun has another one means that "not given" matters: the launcher decides by it. What
torchrun does without the flag is done there. ``tests/unit/test_parser_parity.py`` compares this with the installed
torch.
"""

from __future__ import annotations

import argparse
from typing import Any

from rdzv_launcher.completion import PrintCompletion
from rdzv_launcher.run.command_line.options import FlagOnly, Switch, Value

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def add_torchruns(parser: argparse.ArgumentParser) -> None:
    """Declare everything that torchrun declares."""
    for declare in (_size, _rendezvous, _static, _script, _restarts, _output, _devices, _less_common):
        declare(parser)
    parser.add_argument("training_script", metavar="script", help="what each worker runs")
    parser.add_argument(
        "training_script_args", metavar="argument", nargs=argparse.REMAINDER, help="any arguments of the script"
    )


def comma_separated_list(text: str) -> list[str]:
    """The parts between commas; a double comma is a comma within a part."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


class _Group:
    """A section of the help, and the two spellings of its flags."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def add(self, flag: str, help: str, *, short: str = "", action: type[argparse.Action] = Value, **more: Any) -> None:
        """Declare ``flag``, which may also be written with underscores; values are strings unless said otherwise."""
        spelt = [flag, *([f"--{flag[2:].replace('-', '_')}"] if "-" in flag[2:] else [])]
        if action is not Switch:
            more = {"type": str, "default": None} | more
        self._group.add_argument(*([short] if short else []), *spelt, action=action, help=help, **more)

    def switch(self, flag: str, help: str, *, short: str = "") -> None:
        """Declare a flag without a value."""
        self.add(flag, help, short=short, action=Switch)


def _size(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "nodes and workers")
    group.add(
        "--nnodes",
        "the number of nodes, or the minimum and the maximum (default 1)",
        default="1:1",
        metavar="N|MIN:MAX",
    )
    group.add(
        "--nproc-per-node",
        "workers on this node: a number, or one for each of its devices (default 1)",
        default="1",
        metavar="N|auto|cpu|gpu|xpu|npu",
    )
    group.switch("--standalone", "a single node, which needs no endpoint and no id")


def _rendezvous(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "rendezvous: how nodes meet")
    group.add(
        "--rdzv-backend", "what brings the nodes together; rdzv backends lists them (default static)", metavar="NAME"
    )
    group.add("--rdzv-endpoint", "where they meet", default="", metavar="HOST:PORT")
    group.add("--rdzv-id", "the name of the job, the same on all nodes", metavar="NAME")
    group.add("--rdzv-conf", "options of the backend", default="", metavar="KEY=VALUE,...")
    group.add("--local-addr", "this node's address for the others, instead of the detected one", metavar="ADDRESS")


def _static(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "rendezvous: given ranks and node rank 0's address")
    group.add("--node-rank", "the rank of this node, from 0", type=int, metavar="N")
    group.add(
        "--master-addr", "node rank 0's host; with --master-port an alternative to --rdzv-endpoint", metavar="HOST"
    )
    group.add("--master-port", "node rank 0's port (default 29500)", type=int, metavar="PORT")


def _script(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "how the script is run")
    group.switch("--module", "the script is the name of a module: run it with python -m", short="-m")
    group.switch("--no-python", "the script is a program: run it without Python in front")
    group.switch("--run-path", "run the script inside the processes that torch starts, with runpy.run_path")
    group.add(
        "--start-method",
        "how the processes of --run-path are started (default spawn)",
        default="spawn",
        choices=["spawn", "fork", "forkserver"],
    )
    group.add("--role", "a name for the workers, in logs and in their variables", default="default", metavar="NAME")


def _restarts(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "failures, and the end")
    group.add(
        "--max-restarts",
        "how often the workers are restarted after a failure (default 0)",
        type=int,
        default=0,
        metavar="N",
    )
    group.add(
        "--monitor-interval",
        "time between checks of the workers (default 0.1)",
        type=float,
        default=0.1,
        metavar="SECONDS",
    )
    group.add(
        "--signals-to-handle",
        f"signals at which the agent stops the workers before it ends (default {SIGNALS})",
        default=SIGNALS,
        metavar="NAME,...",
    )
    group.add(
        "--shutdown-timeout",
        "how long stopped workers may take before they are killed (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
        type=int,
        metavar="SECONDS",
    )


def _output(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "what workers print")
    streams = "0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:1,1:3"
    group.add("--log-dir", "where log files go, in a separate directory for each job", metavar="DIRECTORY")
    group.add("--redirects", f"streams that go to a file: {streams}", short="-r", default="0", metavar="STREAMS")
    group.add(
        "--tee",
        "streams that go to a file and to the console, in the same form",
        short="-t",
        default="0",
        metavar="STREAMS",
    )
    group.add(
        "--log-line-prefix-template",
        "what is in front of each line of --tee, with ${role_name}, ${local_rank}, ${rank} and ${hostname} (default: "
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:)",
        default="",
        metavar="TEXT",
    )
    group.add("--local-ranks-filter", "whose output the console shows (default: all)", default="", metavar="RANK,...")
    for name in ("stdout", "stderr"):
        group.add(
            f"--duplicate-{name}-filters",
            f"copy the lines of {name} that have one of these texts in them to a file; ,, is a comma",
            type=comma_separated_list,
            default=[],
            metavar="TEXT,...",
        )


def _devices(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "workers and their devices")
    group.add(
        "--numa-binding",
        "bind each worker to processors near its GPU",
        action=FlagOnly,
        choices=["node", "socket", "exclusive", "core-complex"],
    )
    group.switch("--virtual-local-rank", "each worker sees its GPU alone, as number 0, and has LOCAL_RANK=0")


def _less_common(parser: argparse.ArgumentParser) -> None:
    group = _Group(parser, "plug-ins of torch's agent")
    group.add("--logs-specs", "the entry point of a class for the workers' logs", action=FlagOnly, metavar="NAME")
    group.add(
        "--event-log-handler",
        "the handler of torch's events, by its name (default null)",
        default="null",
        metavar="NAME",
    )
    parser.add_argument("--print-completion", "--print_completion", action=PrintCompletion)
