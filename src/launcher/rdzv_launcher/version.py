"""``--version`` of both commands: in one line, what a bug report has to say first. Does not import torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.errors import MissingDependency


def version_line() -> str:
    """Our version, that of the installed torch and of Python, and whether the native part is there."""
    import platform

    from rdzv_plugins.installed import version_of
    from rdzv_plugins.kvstore.native.server import native_part, version

    found = version_of("torch")
    torch = f"torch {found}" if found else "torch is not installed"
    try:
        native_part()
        native = "yes"
    except MissingDependency as error:
        native = f"no ({error})"
    return f"rdzv-plugins {version()}, {torch}, Python {platform.python_version()}, native part: {native}"


class ShowVersion(argparse.Action):
    """Prints the version and ends with 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_line(), flush=True)
        parser.exit()
