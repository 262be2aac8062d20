"""What a launch does before it starts anything, step by step. ``rdzv-run --check`` takes the same steps.

None of it needs torch, unless the devices of this machine have to be counted: so mistakes are reported before the
import.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable

from rdzv_launcher.run import signals
from rdzv_launcher.run.machine import require_files, require_log_dir, require_processes, require_temporary
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.parser import blaming, read_keys
from rdzv_launcher.run.preemption.settings import NoticeSettings, read_notice, warn_of_longer_grace
from rdzv_launcher.run.request import build_request, check_meeting_point, check_script, flags_behind_script
from rdzv_launcher.run.workers.spec import WorkersSpec, read_spec
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import prepare
from rdzv_plugins.system import preflight

logger = logging.getLogger(__name__)


class Preparation:
    """Turns parsed arguments into what a launch begins with. Each step keeps what it has read, and says what that is.

    A step raises an ``RdzvError`` if the job could not start. After all steps everything was read and checked, and
    nothing is started yet.
    """

    host: PluginHost
    entry: Entry
    request: Request
    notice: NoticeSettings
    spec: WorkersSpec

    def __init__(self, args: RunOptions) -> None:
        self.args = args

    def take_all_steps(self) -> Preparation:
        """Take every step, up to the first that raises; returns itself."""
        for step in STEPS:
            step(self)
        return self

    @property
    def directories(self) -> list[str]:
        """Where this node writes, except for temporary files."""
        return [] if self.args.log_dir in (None, "", os.devnull) else [self.args.log_dir]

    def load_plugins(self) -> str:
        self.host = PluginHost.load(disabled=self.args.rdzv_no_plugin or (), strict=self.args.rdzv_strict)
        return f"{len(self.host.records) - len(self.host.failed)} can be used"

    def read_arguments(self) -> str:
        """Read flags and variables, and what plug-ins add to them."""
        with blaming(self.args):
            read_keys(self.args)
            self.request = build_request(self.args, self.host.resolve_request, self.host.catalog.meets_at)
            self.request = dataclasses.replace(self.request, preflight=preflight.read(self.args.preflight))
        request = self.request
        nodes = str(request.max_nodes) if request.min_nodes == request.max_nodes else self.args.nnodes
        return (
            f"run {request.run_id!r}: nodes: {nodes}, workers of this node: {request.nproc_per_node}, restarts: "
            f"{request.max_restarts}"
        )

    def find_backend(self) -> str:
        with blaming(self.args):
            self.entry = self.host.catalog.find(self.request.backend)
            check_meeting_point(self.request, self.args, self.entry.backend.meets_at)
        return f"{self.entry.backend.name}, from {self.entry.record.distribution} {self.entry.record.version}"

    def require_limits(self) -> str:
        workers = self.request.nproc_per_node
        return f"{require_files(workers)}; {require_processes(workers)}"

    def check_backend(self) -> str:
        """Check the request as the backend sees it, including its options, and whether the backend can be used here."""
        with blaming(self.args):
            self.request = prepare(self.entry, self.request)
        given = ", ".join(f"{key}={value}" for key, value in self.request.conf.items())
        return f"--rdzv-conf {given}" if given else "none are given"

    def check_script(self) -> str:
        check_script(self.args)
        for word in flags_behind_script(self.args):
            logger.warning(
                "%s comes after the script, so %s gets it, and not rdzv-run", word, self.args.training_script
            )
        return str(self.args.training_script)

    def check_signals(self) -> str:
        """Check that the signals exist, and that they can be handled."""
        with blaming(self.args):
            stopping = signals.read(self.args.signals_to_handle)
            self.notice = read_notice(self.args, stopping)
        warn_of_longer_grace(self.notice)
        told = "" if not self.notice.grace else f"; a notice: {', '.join(each.name for each in self.notice.signals)}"
        return f"{', '.join(number.name for number in stopping)}{told}"

    def check_directories(self) -> str:
        """Check the directories for temporary files and for the workers' logs."""
        temporary = require_temporary()
        if not self.directories:
            return f"temporary files and worker logs go to {temporary}"
        return f"temporary files go to {temporary}, logs to {require_log_dir(self.directories[0])}"

    def read_flags_of_workers(self) -> str:
        """Read what the flags say about the workers and their logs."""
        with blaming(self.args):
            self.spec = read_spec(self.args, self.request)
        return "the flags for workers and logs are valid"


STEPS: tuple[Callable[[Preparation], str], ...] = (
    Preparation.load_plugins,
    Preparation.read_arguments,
    Preparation.find_backend,
    Preparation.require_limits,
    Preparation.check_backend,
    Preparation.check_script,
    Preparation.check_signals,
    Preparation.check_directories,
    Preparation.read_flags_of_workers,
)
"""The steps in order: the first that raises decides how the launch ends."""
