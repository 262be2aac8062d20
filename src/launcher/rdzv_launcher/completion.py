"""``--print-completion bash|zsh|tcsh`` of both commands: a script for the shell, which shtab makes from the parser."""

from __future__ import annotations

import argparse
from typing import Any

from rdzv_plugins.errors import MissingDependency


class PrintCompletion(argparse.Action):
    """Prints the script and ends with 0; without shtab, which torchrun needs for it too, it ends with 69."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings,
            dest,
            choices=["bash", "zsh", "tcsh"],
            help="print a script that completes this command's flags in such a shell, and exit",
        )

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        try:
            import shtab
        except ImportError:
            parser.exit(MissingDependency.exit_code, f"{parser.prog}: error: this needs shtab: pip install shtab\n")
        print(shtab.complete(parser, shell), flush=True)
        parser.exit()
