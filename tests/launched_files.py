"""What one launch of two nodes costs in files: ``python tests/launched_files.py [--list] [FLAG ...]``.

Starts two agents on this machine with ``--rdzv-backend=parallel`` and the further flags of ``rdzv-run``, each in a
fresh interpreter, and says for each how many of our files it entered (a function of theirs was called), how many of our
modules it imported, of how many in all, and which threads it had. The goal is 150 entered and 180 imported at most.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

_OURS = ("rdzv_plugins", "rdzv_launcher")
_LIMIT_S = 300


def _agent(report: str, argv: list[str]) -> int:
    """Be one agent, and write what it entered and imported to the file ``report``."""
    entered: set[str] = set()
    threads: set[str] = set()
    pid = os.getpid()

    def called(frame: FrameType, event: str, of: object) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:  # no body of a module or of a class
            entered.add(frame.f_code.co_filename)
            threads.add(threading.current_thread().name)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        from rdzv_launcher.run.cli import main

        return main(argv)
    finally:
        sys.setprofile(None)
        if os.getpid() == pid:  # and not one of its forks
            files = [name for name in entered if any(f"/{each}/" in name for each in _OURS)]
            modules = [name for name in sys.modules if name.partition(".")[0] in _OURS]
            found = {"entered": sorted(files), "imported": sorted(modules), "threads": sorted(threads)}
            Path(report).write_text(json.dumps({**found, "all": len(sys.modules)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--list", action="store_true", help="also print the names")
    own, flags = parser.parse_known_args()
    with socket.socket() as free, tempfile.TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        reports = [Path(directory, str(number)) for number in range(2)]
        launch = ["--nnodes=2", "--rdzv-backend=parallel", f"--rdzv-endpoint={endpoint}", *flags, "--no-python", "true"]
        agents = [subprocess.Popen([sys.executable, __file__, "--agent", str(each), *launch]) for each in reports]
        codes = [each.wait(_LIMIT_S) for each in agents]
        found = [json.loads(each.read_text()) for each in reports]
    for node, each in enumerate(found):
        entered, imported = len(each["entered"]), len(each["imported"])
        print(f"node {node}: {entered} files entered, {imported} of our modules imported (of {each['all']} in all),")
        print(f"  {len(each['threads'])} threads: {', '.join(each['threads'])}")
        for name in each["entered"] * own.list:
            print(f"  entered {name.partition('/src/')[2]}")
        for name in each["imported"] * own.list:
            print(f"  imported {name}")
    return max(codes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--agent"]:
        sys.exit(_agent(sys.argv[2], sys.argv[3:]))
    sys.exit(main())
