"""The keys of --rdzv-conf that belong to ``rdzv-run`` itself, whatever the backend; no backend gets them."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Literal

from rdzv_launcher.run.workers.program import PRELOAD
from rdzv_launcher.run.workers.spec import LogSettings, read_log_settings
from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import option, parse_conf, parse_options
from rdzv_plugins.preflight import checks

HANG_S = 1.0
"""The least time-out for hangs: with a shorter one, a hang cannot be told from a busy machine."""


@dataclass(frozen=True)
class OwnOptions:
    """The values of these keys in this launch."""

    job_restarts: int | None = option(
        None,
        help="How often failed workers are restarted, counted over all nodes; unset: only each node's "
        "--max-restarts counts. Without --max-restarts it sets that, too.",
        minimum=0,
    )
    restart_delay: float = option(
        1.0,
        help="Time before the third restart without progress; each further one waits twice as long, up to a minute. "
        "0: none.",
        unit="s",
        minimum=0,
        maximum=3600,
    )
    crash_loop: Literal["code", "any", "off"] = option(
        "code",
        help="Which failures end the job, with exit code 82, if they happen three times in a row at the same "
        "place: errors in the program's text, any, or none.",
    )
    hang_timeout: float = option(0.0, help="The same as --hang-timeout.", unit="s", minimum=0)
    health_port: int = option(0, help="The same as --health-port.", minimum=0, maximum=65535)
    health_timeout: float = option(
        60.0,
        help="How long the agent's main thread may be stuck before /healthz says so.",
        unit="s",
        minimum=1,
    )
    preempt_grace: float = option(0.0, help="The same as --preempt-grace.", unit="s", minimum=0, maximum=86400)
    leave_background: bool = option(False, help="The same as --leave-background.")
    worker_stacks: bool = option(False, help="The same as --worker-stacks.")
    preflight: str = option("", help="The same as --preflight, with colons between the checks.")
    timeline: str = option("", help="The same as --timeline.")
    notice_signals: str = option("SIGTERM", help="The same as --notice-signals, with colons between the names.")
    worker_notice_signal: str = option("", help="The same as --worker-notice-signal.")
    log_prefix: bool = option(False, help="The same as --log-prefix.")
    fold: bool = option(True, help="With log_prefix: show identical lines of several workers once. false: --no-fold.")
    ranks_filter: str = option("", help="The same as --ranks-filter, with colons between the ranks.")
    log_timestamps: Literal["none", "screen"] = option("none", help="The same as --log-timestamps.")


NAMES = frozenset({PRELOAD, *(each.name for each in dataclasses.fields(OwnOptions))})
"""All of these keys, including those that are read elsewhere."""


def read_own(args: argparse.Namespace) -> OwnOptions:
    """What the arguments say. A flag wins over a key. Raises ``UsageError`` that names the flag or the key."""
    names = {each.name for each in dataclasses.fields(OwnOptions)}
    conf = {key: value for key, value in parse_conf(args.rdzv_conf).items() if key in names}
    own = parse_options(OwnOptions, conf, "rdzv-run")
    if not 0 <= args.health_port <= 65535:
        raise UsageError(f"--health-port={args.health_port} is not a port", remedy="1 to 65535, or 0 for none.")
    if not 0 <= args.preempt_grace <= 86400:
        raise UsageError(
            f"--preempt-grace={args.preempt_grace:g} is not a valid time",
            remedy="Up to 86400 seconds, or 0: no notice is given.",
        )
    by_flag = "hang_timeout" in args.given
    hang_timeout = args.hang_timeout if by_flag else own.hang_timeout
    if hang_timeout and not HANG_S <= hang_timeout < float("inf"):
        name = "--hang-timeout" if by_flag else "--rdzv-conf hang_timeout"
        raise UsageError(
            f"{name}={hang_timeout:g} cannot be the time-out for hangs",
            remedy=f"{HANG_S:g} s or more; 0 for none. More than the longest time for which all ranks may wait.",
        )
    return dataclasses.replace(
        own,
        health_port=args.health_port if "health_port" in args.given else own.health_port,
        hang_timeout=hang_timeout,
        leave_background=args.leave_background or own.leave_background,
        worker_stacks=args.worker_stacks or own.worker_stacks,
        preempt_grace=args.preempt_grace if "preempt_grace" in args.given else own.preempt_grace,
        notice_signals=args.notice_signals or own.notice_signals.replace(":", ","),
        worker_notice_signal=args.worker_notice_signal or own.worker_notice_signal,
        preflight=args.preflight if "preflight" in args.given else own.preflight,
        timeline=args.timeline if "timeline" in args.given else own.timeline,
        log_prefix=args.log_prefix or own.log_prefix,
        fold=own.fold and not args.no_fold,
        ranks_filter=args.ranks_filter or own.ranks_filter.replace(":", ","),
        log_timestamps=args.log_timestamps if "log_timestamps" in args.given else own.log_timestamps,
    )


def preflight_of(args: argparse.Namespace, own: OwnOptions) -> tuple[str, ...]:
    """The checks before each round. Raises ``UsageError`` that names the option that asks for them."""
    return checks.read(own.preflight, "--preflight" if "preflight" in args.given else "--rdzv-conf preflight")


def read_logs(own: OwnOptions) -> LogSettings:
    """How the workers' output is shown and kept. Raises ``UsageError``."""
    return read_log_settings(
        prefix=own.log_prefix,
        fold=own.fold,
        ranks=own.ranks_filter,
        timestamps=own.log_timestamps,
    )
