"""The flags that torchrun does not have."""

from __future__ import annotations

import argparse

from rdzv_launcher.run.command_line.options import Repeated, Switch, Value, ValueOrNone
from rdzv_launcher.version import ShowVersion
from rdzv_plugins.preflight import NAMES, USUAL

TITLE = "rdzv-run options"


def add_our_own(parser: argparse.ArgumentParser) -> None:
    """Declare our own flags, in a section of the help."""
    ours = parser.add_argument_group(TITLE)
    ours.add_argument(
        "--exit-barrier-timeout",
        "--exit_barrier_timeout",
        action=Value,
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="after this time, a node that is done waits only for nodes known to be alive (default: "
        "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT, else 300)",
    )
    ours.add_argument(
        "--preload",
        action=Value,
        type=str,
        default="",
        metavar="MODULE[,MODULE...]",
        help="import these once, while the nodes meet, and fork the workers of every round from there, for "
        "example torch (also RDZV_PRELOAD, or --rdzv-conf preload=MODULE[:MODULE...])",
    )
    ours.add_argument(
        "--hang-timeout",
        "--hang_timeout",
        action=Value,
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="a job hangs if no worker makes progress for this long: all stacks are stored, the rank that "
        "differs is named, and the workers are restarted, or the job ends with 80; 0: off (also "
        "RDZV_HANG_TIMEOUT, or --rdzv-conf hang_timeout=SECONDS)",
    )
    ours.add_argument(
        "--health-port",
        "--health_port",
        action=Value,
        type=int,
        default=0,
        metavar="PORT",
        help="answer /healthz, /readyz and /metrics by HTTP on this port; 0: on none (also "
        "TORCHELASTIC_HEALTH_CHECK_PORT, or --rdzv-conf health_port=PORT)",
    )
    ours.add_argument(
        "--preflight",
        action=ValueOrNone,
        default="",
        const=USUAL,
        metavar="CHECK,...",
        help="before each round nodes test themselves: one that is broken or slow is named and left out if the others "
        f"are enough; alone it is all checks, else some of {', '.join(NAMES)} (also RDZV_PREFLIGHT, or --rdzv-conf "
        "preflight=CHECK[:CHECK...])",
    )
    ours.add_argument(
        "--preempt-grace",
        "--preempt_grace",
        action=Value,
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="the time that a node about to be taken away has: the workers of all nodes are told first, so that "
        "they can save, and the node ends with 81; 0: a signal stops its workers (also RDZV_PREEMPT_GRACE, or "
        "--rdzv-conf preempt_grace=SECONDS)",
    )
    ours.add_argument(
        "--notice-signals",
        "--notice_signals",
        action=Value,
        type=str,
        default="",
        metavar="SIGNAL[,SIGNAL...]",
        help="with --preempt-grace: the signals that give notice, for example USR1 with Slurm's "
        "--signal=USR1@120 (default: SIGTERM; also RDZV_NOTICE_SIGNALS, or --rdzv-conf "
        "notice_signals=SIGNAL[:SIGNAL...])",
    )
    ours.add_argument(
        "--worker-notice-signal",
        "--worker_notice_signal",
        action=Value,
        type=str,
        default="",
        metavar="SIGNAL",
        help="send workers this signal when there is a notice; none by default (also RDZV_WORKER_NOTICE_SIGNAL, or "
        "--rdzv-conf worker_notice_signal=SIGNAL)",
    )
    ours.add_argument(
        "--leave-background",
        "--leave_background",
        action=Switch,
        help="leave alone what workers have started in sessions of its own (setsid, daemons) when this node ends; "
        "otherwise it is told to end by SIGTERM, has --shutdown-timeout for that, and is named (also "
        "RDZV_LEAVE_BACKGROUND, or --rdzv-conf leave_background=true)",
    )
    _output(ours)
    ours.add_argument(
        "--worker-stacks",
        "--worker_stacks",
        action=Switch,
        help="have workers write their stacks when rdzv stacks asks, for where no debugger may look, and let the agent "
        "read them under Yama: code of ours in the workers, as with --hang-timeout (also RDZV_WORKER_STACKS, or "
        "--rdzv-conf worker_stacks=true)",
    )
    ours.add_argument(
        "--timeline",
        action=Value,
        type=str,
        default="",
        metavar="DIR",
        help="write what happens on this node, and when, to its own file in this directory: rdzv timeline DIR "
        "shows what each interruption cost (also RDZV_TIMELINE, or --rdzv-conf timeline=DIR)",
    )
    ours.add_argument(
        "--enable-tiered-parallel-tcpstore",
        "--enable_tiered_parallel_tcpstore",
        action=Value,
        type=str,
        default="false",
        metavar="true|false",
        help="torch_npu_run's switch for one store proxy per node: true is --rdzv-backend=tiered (default false)",
    )
    ours.add_argument(
        "--check",
        action=Switch,
        help="report what can be known before the start, line by line, and exit: nothing is started or left behind",
    )
    ours.add_argument(
        "--rdzv-no-plugin",
        "--rdzv_no_plugin",
        action=Repeated,
        metavar="NAME",
        help="switch off the plug-in (or distribution) NAME; may be repeated. Also RDZV_DISABLE_PLUGINS=NAME,...",
    )
    ours.add_argument(
        "--rdzv-strict",
        "--rdzv_strict",
        action=Switch,
        help="stop if any installed plug-in is broken, not only the selected one",
    )
    ours.add_argument(
        "-v", "--verbose", action=Switch, help="log more, and show tracebacks of errors (also RDZV_DEBUG=1)"
    )
    ours.add_argument(
        "--version", action=ShowVersion, help="print the versions, and whether the native part is there, and exit"
    )


def _output(ours: argparse._ArgumentGroup) -> None:
    """Declare the flags about workers' output: how it is shown and kept."""
    ours.add_argument(
        "--log-prefix",
        "--log_prefix",
        action=Switch,
        help="show the workers' lines with HOST:RANK in front (or --log-line-prefix-template), and identical lines "
        "once; they go to files, too, as with --tee",
    )
    ours.add_argument(
        "--no-fold",
        "--no_fold",
        action=Switch,
        help="with --log-prefix: show every line of each worker by itself",
    )
    ours.add_argument(
        "--ranks-filter",
        "--ranks_filter",
        action=Value,
        type=str,
        default="",
        metavar="RANK[-RANK],...",
        help="whose output the console shows, by global rank (default: all)",
    )
    ours.add_argument(
        "--log-timestamps",
        "--log_timestamps",
        action=Value,
        type=str,
        default="none",
        choices=["none", "screen"],
        help="whether workers' lines get the time in front on the screen (--tee, --log-prefix; default none)",
    )
