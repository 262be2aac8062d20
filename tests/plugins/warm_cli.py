"""``rdzv-run`` without the seconds of ``import torch``: imports the launcher once, then forks for each command line.

Reads one JSON list per line of standard input: the arguments, the variables to add, the files for stdout and
stderr. Answers each with the exit code.
"""

import json
import os
import sys
import traceback

import rdzv_launcher.run.launch  # noqa: F401
from rdzv_launcher.run.cli import main


def run(argv, variables, stdout, stderr):
    """In the forked process: what ``python -m rdzv_launcher.run.cli`` would do."""
    code = 1
    try:
        for path, fd in ((os.devnull, 0), (stdout, 1), (stderr, 2)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), fd)
        os.environ.update(variables)
        code = main(argv)
    except SystemExit as end:  # argparse
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        run(*request)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
