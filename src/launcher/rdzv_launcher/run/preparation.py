"""What a launch does before it starts anything, step by step. ``rdzv-run --check`` takes the same steps."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from typing import Any

from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args

from rdzv_launcher.run.arguments import blaming_variables
from rdzv_launcher.run.directories import require_log_dir, require_temporary
from rdzv_launcher.run.limits import require_files, require_processes
from rdzv_launcher.run.request import TORCHS_DYNAMIC, build_request, check_meeting_point, check_script
from rdzv_plugins.assemble.create import prepare
from rdzv_plugins.errors import UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)


class Preparation:
    """Turns parsed arguments into a request that a backend can be made of. Each step returns what it has found.

    A step raises an ``RdzvError`` if the job could not start.
    """

    host: PluginHost
    entry: Entry
    request: Request

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def load_plugins(self) -> str:
        """Load the plug-ins of this installation."""
        self.host = PluginHost.load(disabled=self.args.rdzv_no_plugin or (), strict=self.args.rdzv_strict)
        return f"{len(self.host.records) - len(self.host.failed)} can be used"

    def read_arguments(self) -> str:
        """Flags and variables, and what plug-ins add to them."""
        with blaming_variables(self.args):
            self.request = build_request(self.args, self.host.resolve_request, self.host.catalog.meets_at)
        request = self.request
        nodes = str(request.max_nodes) if request.min_nodes == request.max_nodes else self.args.nnodes
        return (
            f"run {request.run_id!r}: nodes: {nodes}, workers of this node: {request.nproc_per_node}, restarts: "
            f"{request.max_restarts}"
        )

    def find_backend(self) -> str:
        """Find the backend by its name."""
        with blaming_variables(self.args):
            self.entry = self.host.catalog.find(self.request.backend)
            check_meeting_point(self.request, vars(self.args), self.entry.backend.meets_at)
        return f"{self.entry.backend.name}, from {self.entry.record.distribution} {self.entry.record.version}"

    def require_limits(self) -> str:
        """Check the system's limits for this process and its workers."""
        workers = self.request.nproc_per_node
        return f"{require_files(workers)}; {require_processes(workers)}"

    def check_backend(self) -> str:
        """The request as the backend sees it, its options among them; and whether it can be used here."""
        with blaming_variables(self.args):
            self.request = prepare(self.entry, self.request)
        given = ", ".join(f"{key}={value}" for key, value in self.request.conf.items())
        return f"--rdzv-conf {given}" if given else "none are given"

    def check_script(self) -> str:
        """Check the script that the workers run."""
        check_script(self.args)
        return str(self.args.training_script)

    def check_directories(self) -> str:
        """Check the directories for temporary files and for the workers' logs."""
        temporary = require_temporary()
        if self.args.log_dir in (None, "", os.devnull):
            return f"temporary files, and what workers are told to log, go to {temporary}"
        return f"temporary files go to {temporary}, logs to {require_log_dir(self.args.log_dir)}"

    def torch_config(self, logs: str) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
        """Read the flags about the workers as torch does; ``logs`` is the directory without --log-dir.

        torch makes the directory of the logs meanwhile. Raises ``UsageError``.
        """
        with blaming_variables(self.args):
            return _torch_config(self.args, self.request, logs)


STEPS: tuple[Callable[[Preparation], str], ...] = (
    Preparation.load_plugins,
    Preparation.read_arguments,
    Preparation.find_backend,
    Preparation.require_limits,
    Preparation.check_backend,
    Preparation.check_script,
    Preparation.check_directories,
)
"""The steps in their order: the first that raises decides how the launch ends."""


def _torch_config(
    args: argparse.Namespace, request: Request, logs: str
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Read the workers' flags as torch does; ``logs`` is the directory without --log-dir. Raises ``UsageError``."""
    if "OMP_NUM_THREADS" not in os.environ and request.nproc_per_node > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # torchrun's default too, which says so in a banner
        logger.info("OMP_NUM_THREADS=1 for each worker (torchrun's default); set it to use more threads")
    plain = argparse.Namespace(**vars(args))
    plain.nproc_per_node = str(request.nproc_per_node)
    plain.nnodes = f"{request.min_nodes}:{request.max_nodes}"
    # the rendezvous is ours: torch must neither parse nor warn about these
    plain.rdzv_backend, plain.rdzv_endpoint = TORCHS_DYNAMIC, request.endpoint or "-"
    plain.rdzv_conf, plain.node_rank = "", 0
    plain.role, plain.max_restarts = request.role, request.max_restarts
    if plain.log_dir is None and plain.logs_specs is None:
        plain.log_dir = logs
    plain.rdzv_id, plain.local_addr = request.run_id, request.local_addr
    try:
        config, entrypoint, arguments = config_from_args(plain)
    except (ValueError, AssertionError, OSError) as error:
        raise UsageError(f"a flag about the workers or their logs (--redirects, --log-dir, ...): {error}") from error
    return config, entrypoint, list(arguments)
