"""Every option of ``rdzv-run``, declared once: torchrun's, as in torch 2.15, and our own.

A field of ``RunOptions`` is an option. Its flag, its variables, its key of --rdzv-conf, what they may be, the help and
docs/reference/command-line.md are made from it. ``parser`` reads the flags and variables.

A default of None where torchrun has another one means that "not given" matters: the launcher decides by it. What
torchrun does without the flag is done there. ``tests/unit/test_parser_parity.py`` compares this with the installed
torch. Annotations are evaluated here, as ``parser`` needs the types themselves: there is no import from ``__future__``.
"""

import argparse
import dataclasses
import typing
from typing import Any, Literal

from rdzv_plugins.options import option, strip_none
from rdzv_plugins.system.preflight import NAMES, USUAL

_STREAMS = "0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:1,1:3"
_FILTERS = "that contain one of these texts to a file; ,, is a comma"


def flag(
    default: Any,
    help: str,
    metavar: str = "",
    *,
    section: str = "",
    short: str = "",
    variable: bool = True,
    also: str = "",
    key: bool = False,
    alone: str = "",
    repeated: bool = False,
    decides: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """An option that has a flag: a switch if its type is ``bool``, otherwise with a value.

    ``section``: the section of the help that begins with it. ``variable``: whether ``PET_`` and its name set it, as
    they do in torchrun; ``also``: another variable that does. ``key``: whether a key of --rdzv-conf does, in which
    commas of ``metavar`` are colons. ``alone``: the value of a flag without one. ``repeated``: each flag adds a value.
    ``decides``: the fields of the ``Request`` that the option sets.
    """
    own = {"metavar": metavar, "section": section, "short": short, "variable": variable, "also": also, "key": key}
    unit = "s" if metavar == "SECONDS" else ""
    declared: dataclasses.Field[Any] = option(default, help=help, unit=unit, minimum=minimum, maximum=maximum)
    metadata = {**declared.metadata, **own, "flag": True, "alone": alone, "repeated": repeated, "decides": decides}
    return dataclasses.field(default=default, metadata=metadata)


def key(default: Any, **more: Any) -> Any:
    """An option that only --rdzv-conf sets: see ``rdzv_plugins.options.option``."""
    declared: dataclasses.Field[Any] = option(default, **more)
    return dataclasses.field(default=default, metadata={**declared.metadata, "key": True})


@dataclasses.dataclass(init=False, eq=False, repr=False)
class RunOptions(argparse.Namespace):
    """The values of one launch; without arguments the defaults."""

    nnodes: str = flag(
        "1:1",
        "the number of nodes, or the minimum and the maximum (default 1)",
        "N|MIN:MAX",
        section="nodes and workers",
        decides=("min_nodes", "max_nodes"),
    )
    nproc_per_node: str = flag(
        "1",
        "workers on this node: a number, or one for each of its devices (default 1)",
        "N|auto|cpu|gpu|xpu|npu",
        decides=("nproc_per_node",),
    )
    standalone: bool = flag(False, "a single node, which needs no endpoint and no id")

    rdzv_backend: str | None = flag(
        None,
        "the rendezvous backend; rdzv backends lists them (default static)",
        "NAME",
        section="rendezvous: how nodes meet",
        decides=("backend",),
    )
    rdzv_endpoint: str = flag("", "where the nodes meet", "HOST:PORT", decides=("endpoint",))
    rdzv_id: str | None = flag(None, "the name of the job, the same on all nodes", "NAME", decides=("run_id",))
    rdzv_conf: str = flag("", "options of the backend", "KEY=VALUE,...", decides=("conf",))
    local_addr: str | None = flag(
        None,
        "this node's address for the others, instead of the detected one",
        "ADDRESS",
        decides=("local_addr",),
    )

    node_rank: int | None = flag(
        None,
        "the rank of this node, from 0",
        "N",
        minimum=0,
        section="rendezvous: given ranks and node rank 0's address",
        decides=("node_rank",),
    )
    master_addr: str | None = flag(
        None, "node rank 0's host; with --master-port an alternative to --rdzv-endpoint", "HOST"
    )
    master_port: int | None = flag(None, "node rank 0's port (default 29500)", "PORT", minimum=0, maximum=65535)

    module: bool = flag(
        False, "the script is the name of a module: run it with python -m", short="-m", section="how the script is run"
    )
    no_python: bool = flag(False, "the script is a program: run it without Python in front")
    run_path: bool = flag(False, "run the script inside the processes that torch starts, with runpy.run_path")
    start_method: Literal["spawn", "fork", "forkserver"] = flag(
        "spawn", "how the processes of --run-path are started (default spawn)"
    )
    role: str = flag("default", "a name for the workers, in logs and in their variables", "NAME", decides=("role",))

    max_restarts: int = flag(
        0,
        "how often the workers are restarted after a failure (default 0)",
        "N",
        minimum=0,
        section="failures, and the end",
        decides=("max_restarts",),
    )
    monitor_interval: float = flag(0.1, "time between checks of the workers (default 0.1)", "SECONDS")
    signals_to_handle: str = flag(
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "signals at which the agent stops the workers before it ends (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        "NAME,...",
    )
    shutdown_timeout: int | None = flag(
        None,
        "how long stopped workers may take before they are killed (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
        "SECONDS",
    )

    log_dir: str | None = flag(
        None, "where log files go, in a separate directory for each job", "DIRECTORY", section="what workers print"
    )
    redirects: str = flag("0", f"streams that go to a file: {_STREAMS}", "STREAMS", short="-r")
    tee: str = flag("0", "streams that go to a file and to the console, in the same form", "STREAMS", short="-t")
    log_line_prefix_template: str = flag(
        "",
        "what is in front of each line of --tee, with ${role_name}, ${local_rank}, ${rank} and ${hostname} (default: "
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:)",
        "TEXT",
    )
    local_ranks_filter: str = flag("", "whose output the console shows (default: all)", "RANK,...")
    duplicate_stdout_filters: list[str] | None = flag(None, f"copy the lines of stdout {_FILTERS}", "TEXT,...")
    duplicate_stderr_filters: list[str] | None = flag(None, f"copy the lines of stderr {_FILTERS}", "TEXT,...")

    numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None = flag(
        None, "bind each worker to processors near its GPU", variable=False, section="workers and their devices"
    )
    virtual_local_rank: bool = flag(False, "each worker sees its GPU alone, as number 0, and has LOCAL_RANK=0")

    logs_specs: str | None = flag(
        None,
        "the entry point of a class for the workers' logs",
        "NAME",
        variable=False,
        section="plug-ins of torch's agent",
    )
    event_log_handler: str = flag("null", "the handler of torch's events, by its name (default null)", "NAME")

    # what torchrun does not have

    exit_barrier_timeout: float = flag(
        300.0,
        "how long a finished node waits for all others, and not only for those known to be alive (default 300)",
        "SECONDS",
        also="TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
        section="rdzv-run options",
    )
    preload: str = flag(
        "",
        "import these once, while the nodes meet, and fork the workers of every round from there; for example torch",
        "MODULE[,MODULE...]",
        also="RDZV_PRELOAD",
        key=True,
    )
    hang_timeout: float = flag(
        0.0,
        "treat the job as hung after this long without progress: store all stacks, name the rank that differs, and "
        "restart the workers, or end the job with 80; 0: off",
        "SECONDS",
        also="RDZV_HANG_TIMEOUT",
        key=True,
        minimum=0,
    )
    health_port: int = flag(
        0,
        "serve /healthz, /readyz and /metrics over HTTP on this port; 0: off",
        "PORT",
        also="TORCHELASTIC_HEALTH_CHECK_PORT",
        key=True,
        minimum=0,
        maximum=65535,
    )
    health_timeout: float = key(
        60.0, help="how long the agent's main thread may be stuck before /healthz reports it", unit="s", minimum=1
    )
    preflight: str = flag(
        "",
        "test the nodes before each round; broken or slow ones are named, and left out if enough others remain; "
        f"without a value all checks, else some of {', '.join(NAMES)}",
        "CHECK,...",
        also="RDZV_PREFLIGHT",
        key=True,
        alone=USUAL,
    )
    preempt_grace: float = flag(
        0.0,
        "time between a preemption notice and the end of the node: the workers of all nodes are notified so that they "
        "can save, and the node exits with 81; 0: a signal stops the workers",
        "SECONDS",
        also="RDZV_PREEMPT_GRACE",
        key=True,
        minimum=0,
        maximum=86400,
    )
    notice_signals: str = flag(
        "SIGTERM",
        "with --preempt-grace: the signals that are a notice, for example USR1 with Slurm's --signal=USR1@120 (default "
        "SIGTERM)",
        "SIGNAL[,SIGNAL...]",
        also="RDZV_NOTICE_SIGNALS",
        key=True,
    )
    worker_notice_signal: str = flag(
        "",
        "send this signal to the workers at a notice; none by default",
        "SIGNAL",
        also="RDZV_WORKER_NOTICE_SIGNAL",
        key=True,
    )
    job_restarts: int | None = key(
        None,
        help="how often failed workers are restarted, counted over all nodes; unset: only each node's --max-restarts "
        "counts. Without --max-restarts it sets that, too",
        minimum=0,
    )
    restart_delay: float = key(
        1.0,
        help="time before the third restart without progress; each further one waits twice as long, up to a minute. "
        "0: none",
        unit="s",
        minimum=0,
        maximum=3600,
    )
    crash_loop: Literal["code", "any", "off"] = key(
        "code",
        help="which failures end the job, with exit code 82, if they happen three times in a row at the same place: "
        "errors in the program's text, any, or none",
    )
    leave_background: bool = flag(
        False,
        "when this node ends, leave processes alone that workers started in sessions of their own (setsid, daemons); "
        "otherwise they are named, get SIGTERM, and have --shutdown-timeout to end",
        also="RDZV_LEAVE_BACKGROUND",
        key=True,
    )
    log_prefix: bool = flag(
        False,
        "prefix the workers' lines with HOST:RANK (or --log-line-prefix-template), and show identical lines once; "
        "they go to files, too, as with --tee",
        key=True,
    )
    no_fold: bool = flag(False, "with --log-prefix: show every line of each worker by itself")
    fold: bool = key(True, help="with --log-prefix: show identical lines of several workers once; false: --no-fold")
    ranks_filter: str = flag(
        "", "whose output the console shows, by global rank (default: all)", "RANK[-RANK],...", key=True
    )
    log_timestamps: Literal["none", "screen"] = flag(
        "none",
        "prefix the workers' lines on the screen with the time (--tee, --log-prefix; default none)",
        key=True,
    )
    worker_stacks: bool = flag(
        False,
        "have workers write their stacks when rdzv stacks asks, where no debugger may look, and let the agent read "
        "them under Yama; runs code of ours in the workers, as --hang-timeout does",
        also="RDZV_WORKER_STACKS",
        key=True,
    )
    timeline: str = flag(
        "",
        "record what happens on this node, and when, in a file of its own in this directory; rdzv timeline DIR shows "
        "what each interruption cost",
        "DIR",
        also="RDZV_TIMELINE",
        key=True,
    )
    enable_tiered_parallel_tcpstore: str = flag(
        "false",
        "torch_npu_run's switch for one store proxy per node: true is --rdzv-backend=tiered (default false)",
        "true|false",
        decides=("backend",),
    )
    check: bool = flag(
        False,
        "check what can be checked before the start, one line for each check, and exit: nothing is started",
    )
    rdzv_no_plugin: list[str] | None = flag(
        None,
        "switch off the plug-in (or distribution) NAME; may be repeated. Also RDZV_DISABLE_PLUGINS=NAME,...",
        "NAME",
        variable=False,
        repeated=True,
    )
    rdzv_strict: bool = flag(False, "stop if any installed plug-in is broken, not only the selected one")
    verbose: bool = flag(False, "log more, and show tracebacks of errors (also RDZV_DEBUG=1)", short="-v")

    def __init__(self, **values: Any) -> None:
        self.training_script = ""
        self.training_script_args: list[str] = []
        self.given: dict[str, str] = {}
        """What has set each option that is not at its default: its flag, a variable, or ``--rdzv-conf KEY``."""
        super().__init__(**values)


OPTIONS: dict[str, "dataclasses.Field[Any]"] = {each.name: each for each in dataclasses.fields(RunOptions)}
KEYS = frozenset(name for name, each in OPTIONS.items() if each.metadata["key"])
"""The keys of --rdzv-conf that belong to ``rdzv-run`` itself, whatever the backend; no backend gets them."""


def flag_of(name: str) -> str:
    """The flag of an option, as it is shown."""
    return f"--{name.replace('_', '-')}"


def variables_of(name: str) -> list[str]:
    """The variables that set an option, the one that wins first."""
    metadata = OPTIONS[name].metadata
    own = [f"PET_{name.upper()}"] if metadata.get("variable") else []
    return [*own, metadata["also"]] if metadata.get("also") else own


def kind_of(name: str) -> tuple[Any, list[str] | None]:
    """The type of an option's value, ``list[str]`` for several; and what there is to choose from, if it is a choice."""
    kind = strip_none(OPTIONS[name].type)
    return (str, list(typing.get_args(kind))) if typing.get_origin(kind) is Literal else (kind, None)


def help_of(name: str) -> str:
    """What an option does, and where else than by its flag it may be set."""
    metadata = OPTIONS[name].metadata
    also = [metadata["also"]] if metadata.get("also") else []
    if metadata.get("flag") and metadata["key"]:
        kind, choices = kind_of(name)
        value = "true" if kind is bool else "|".join(choices) if choices else metadata["metavar"].replace(",", ":")
        also.append(f"--rdzv-conf {name}={value}")
    text: str = metadata["help"]
    if not also:
        return text
    start = f"{text[:-1]}; also" if text.endswith(")") else f"{text} (also"
    return f"{start} {', or '.join(also)})"
