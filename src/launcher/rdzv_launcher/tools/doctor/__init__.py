"""``rdzv doctor``: is this machine fit for a job, and can it reach the place where the nodes meet?"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from rdzv_launcher.tools.doctor import machine, network
from rdzv_launcher.tools.doctor.checks import Check, Finding, line, run_check
from rdzv_launcher.tools.job import add_job_flags, request_of
from rdzv_launcher.version import version_line
from rdzv_plugins.errors import MissingDependency, UsageError
from rdzv_plugins.installed import version_of
from rdzv_plugins.kvstore.native.server import native_part
from rdzv_plugins.plain_text import printable, printable_data
from rdzv_plugins.registry import PluginHost

_LONGEST = 4000


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("doctor", help="check this machine and its network path to the job's endpoint")
    add_job_flags(
        parser,
        endpoint_help="the job's endpoint; if unset, check only this machine",
        endpoint_required=False,
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--strict", action="store_true", help="also exit with 1 on warnings")


def run(args: argparse.Namespace) -> int:
    """Look and print; returns 1 if something is wrong, otherwise 0. Raises ``UsageError``."""
    if not sys.platform.startswith("linux"):
        raise UsageError("rdzv doctor runs on Linux only", remedy="Use rdzv-run --check here.")
    if not args.rdzv_endpoint and (args.rdzv_backend or args.rdzv_conf or args.rdzv_id):
        raise UsageError(
            "--rdzv-backend, --rdzv-id and --rdzv-conf need --rdzv-endpoint",
            remedy="Add --rdzv-endpoint, or leave them out.",
        )
    found: list[Finding] = []
    for finding in _findings(args):
        found.append(finding)
        if not args.json:
            print(printable(line(finding), _LONGEST), flush=True)
    bad = [each.name for each in found if each.verdict == "wrong"]
    doubtful = [each.name for each in found if each.verdict == "warning"]
    if args.json:
        told = [printable_data({"verdict": each.verdict} | asdict(each)) for each in found]
        print(json.dumps({"findings": told}, indent=2), flush=True)
    else:
        print(_conclusion(bad, doubtful), flush=True)
    return 1 if bad or (args.strict and doubtful) else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    endpoints = network.endpoints_of(args.rdzv_endpoint)
    host = PluginHost.load()
    checks: list[tuple[str, Check]] = [
        ("versions", _versions),
        ("nccl", nccl),
        ("plug-ins", partial(_plugins, host)),
        ("host name", network.host_name),
        ("reverse look-up", network.reverse_dns),
        ("interfaces", network.interfaces),
        ("ports", machine.ports),
        ("open files", machine.files),
        ("somaxconn", machine.backlog),
        ("processes", machine.processes),
        ("processors", machine.processors),
        ("memory", machine.memory),
        ("/dev/shm", machine.shared_memory),
        ("temporary files", machine.temporary),
        ("clock", machine.clock),
        ("leftover processes", machine.leftovers),
    ]
    for name, check in checks:
        yield from run_check(name, check)
    reached = False
    for endpoint in endpoints:
        found = [*run_check(f"way to {endpoint}", partial(network.path_to, endpoint))]
        reached = reached or all(each.verdict == "ok" for each in found)
        yield from found
    if reached or args.rdzv_backend:
        yield from run_check("who answers", partial(network.who_answers, host, request_of(args)))


def _versions() -> Iterator[Finding]:
    try:
        native_part()
    except MissingDependency as error:
        yield Finding("versions", version_line(), "warning", error.remedy)
    else:
        yield Finding("versions", version_line())


def nccl() -> Iterator[Finding]:
    """Which of torch's two backends for NCCL a script's ``nccl`` means; nothing if there is one only."""
    torch, variable = version_of("torch"), "TORCH_DIST_USE_NCCL2"
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    if numbers is None or (release := (int(numbers[1]), int(numbers[2]))) < (2, 14):
        return
    given = os.environ.get(variable)
    second = given != "0" if release >= (2, 15) else given == "1"
    setting = f"{variable} not set" if given is None else f"{variable}={given}"
    meant = "nccl2, the default since torch 2.15" if second else "the earlier backend, not nccl2"
    yield Finding("nccl", f"backend nccl means {meant} (torch {torch}, {setting}); it must be the same on all nodes")


def _plugins(host: PluginHost) -> Iterator[Finding]:
    for record in host.failed:
        yield Finding(f"plug-in {record.name}", f"{record.label}: {record.error}", "wrong", record.remedy)
    if not host.failed:
        yield Finding("plug-ins", f"all {len(host.records)} usable")


def _conclusion(bad: list[str], doubtful: list[str]) -> str:
    if bad:
        return f"Problems found: {', '.join(bad)}."
    return f"No problems found; check the warnings: {', '.join(doubtful)}." if doubtful else "No problems found."
