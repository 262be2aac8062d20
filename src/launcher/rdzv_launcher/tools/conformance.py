"""``rdzv conformance BACKEND``: runs the conformance suite against an installed backend, with no file to write."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rdzv_plugins.errors import MissingDependency, RdzvError, UsageError
from rdzv_plugins.options import parse_conf, parse_options
from rdzv_plugins.testing import THEMES

if TYPE_CHECKING:
    from rdzv_plugins.testing.apart import Journal

_PATIENCE = "RDZV_CONFORMANCE_PATIENCE"


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser(
        "conformance", help="run the conformance suite against an installed backend (needs 'rdzv-plugins[testing]')"
    )
    add = parser.add_argument
    add("backend", metavar="BACKEND", help="the backend's name, as given to --rdzv-backend")
    add(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        metavar="WHERE",
        help="where its service already runs (default: the backend's harness starts it)",
    )
    add("--rdzv-conf", "--rdzv_conf", default="", metavar="K=V,...", help="options of every job; keep time-outs short")
    add("--theme", metavar="A,B", help=f"run only these themes, of {', '.join(THEMES)}")
    add("--json", metavar="FILE", help="also write the report to FILE as JSON")
    add("-x", dest="maxfail", action="store_const", const=1, help="stop at the first failure")
    add("--maxfail", type=int, metavar="N", help="stop after N failures")
    add("--timeout", type=float, metavar="SECONDS", help="time limit of each test (default 300)")
    add("-k", dest="select", default="", metavar="EXPR", help="run only the tests whose names match, as in pytest")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all passed, else 1. Raises ``UsageError``, ``MissingDependency`` and the harness's errors."""
    conf = parse_conf(args.rdzv_conf)
    _check_patience()
    if args.timeout is not None and not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout={args.timeout:g} is not a time limit", remedy="Give a number of seconds above 0.")
    if args.maxfail is not None and args.maxfail < 1:
        raise UsageError(f"--maxfail={args.maxfail} is less than 1", remedy="Leave it out to run all tests.")
    themes = THEMES if args.theme is None else [name.strip() for name in args.theme.split(",")]
    unknown = [name for name in themes if name not in THEMES]
    if unknown:
        raise UsageError(f"--theme: unknown theme {unknown[0]!r}", remedy=f"Themes: {', '.join(THEMES)}.")
    if importlib.util.find_spec("pytest") is None:
        raise MissingDependency(
            "the conformance suite needs module 'pytest', which is not installed",
            remedy="Install it: pip install 'rdzv-plugins[testing]'",
        )
    if args.json:
        _check_writable(args.json)
    from rdzv_plugins.testing.apart import apart

    return apart(lambda journal: _tests(args, conf, themes, journal), args.json)


def _tests(args: argparse.Namespace, conf: Mapping[str, str], themes: Sequence[str], journal: Journal) -> int:
    """Run the tests, and print and write their report."""
    import pytest

    from rdzv_plugins.registry.create import NoOptions
    from rdzv_plugins.testing.find import find_harness
    from rdzv_plugins.testing.harness import entry

    found = entry(args.backend)
    every = conf
    if args.rdzv_endpoint is None:
        every = find_harness(args.backend, conf=conf).conf  # if there is none, this says so in a line or two
    if conf:  # otherwise its harness may still add to them
        parse_options(found.backend.options or NoOptions, every, f"backend {found.backend.name!r}")
    code = pytest.main(_arguments(args, found.backend.name, themes), plugins=[journal])
    return _exit_code(int(code), args.select)


def _exit_code(code: int, select: str) -> int:
    """Our exit code, from pytest's. Raises ``UsageError`` if no test was selected."""
    import pytest

    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise UsageError(f"no test matches -k {select!r}", remedy="Run without -k to see the names.")
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        return RdzvError.exit_code
    return 130 if code == pytest.ExitCode.INTERRUPTED else code


def _check_patience() -> None:
    """Check the patience here: the suite reads it when imported, and could only fail there."""
    given = os.environ.get(_PATIENCE, "1")
    try:
        right = 0 < float(given) < float("inf")
    except ValueError:
        right = False
    if not right:
        raise UsageError(f"{_PATIENCE}={given!r} is not a number of seconds", remedy="Set it to 60, say, or unset it.")


def _check_writable(file: str) -> None:
    """Check that the file can be written now, rather than when all tests have run."""
    try:
        open(file, "a").close()
    except OSError as error:
        raise UsageError(
            f"--json: cannot write {file}: {error.strerror}",
            remedy="Name a file in an existing directory that you may write to.",
        ) from None


def _arguments(args: argparse.Namespace, backend: str, themes: Sequence[str]) -> list[str]:
    """The arguments of pytest. Settings of a project in the current directory must not affect this run."""
    from rdzv_plugins import testing

    directory = testing.__path__[0]
    arguments = [
        os.path.join(directory, "every_theme.py"),
        *("-c", os.devnull, f"--rootdir={directory}", f"--confcutdir={directory}", "--import-mode=importlib"),
        *("-p", "no:cacheprovider", "-p", "rdzv_plugins.testing.plugin", "--tb=short", "-rN", "-q"),
        *("-o", "console_output_style=classic"),
        f"--conformance-backend={backend}",
        f"--conformance-conf={args.rdzv_conf}",
        f"--conformance-themes={','.join(themes)}",
    ]
    optional = {
        "conformance-endpoint": args.rdzv_endpoint,
        "maxfail": args.maxfail,
        "conformance-timeout": args.timeout,
        "conformance-json": os.path.abspath(args.json) if args.json else None,
    }
    arguments += [f"--{name}={value}" for name, value in optional.items() if value is not None]
    return [*arguments, "-k", args.select] if args.select else arguments
