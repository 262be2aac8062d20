"""What a worker of --run-path runs: the script, whose exception torch records in the worker's error file.

A program of its own: an interpreter is given this file, which may import nothing before ``sys.path`` is the script's.
"""

import sys


def main() -> None:
    """Run the script named by the first argument as ``__main__``, with the rest as its arguments."""
    script, *arguments = sys.argv[1:]
    safe = getattr(sys.flags, "safe_path", False)  # python -P puts no directory there
    if not safe:
        del sys.path[0]
    import os
    import runpy

    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    sys.argv = [script, *arguments]
    from torch.distributed.elastic.multiprocessing.errors import record

    record(runpy.run_path)(script, run_name="__main__")


if __name__ == "__main__":
    main()
