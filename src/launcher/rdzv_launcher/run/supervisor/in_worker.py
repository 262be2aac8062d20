"""What a job has asked for in its workers, and how it gets there; in the workers of other jobs nothing of ours runs.

The supervisor puts ``hook/sitecustomize.py`` on the path of a fresh interpreter, which calls ``arrange`` before it
looks at its program, and leaves no trace of itself. A program other than Python hands the path on to interpreters that
it starts; one in a container does not find it, and goes on as without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import rdzv_launcher
import rdzv_plugins
from rdzv_plugins.stacks_on_request import VARIABLE as STACKS

VARIABLE = "RDZV_IN_WORKER"
"""Where our packages are, for a worker in which something is to be arranged. Only until that is done."""
HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_STORE = "RDZV_STORE_PORT"


def asked(variables: Mapping[str, str]) -> dict[str, str]:
    """What to add to these variables of a worker if they ask for something that has to be arranged in it."""
    return {VARIABLE: ROOTS} if STACKS in variables or _STORE in variables else {}


def hooked(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a fresh interpreter, with the path to the hook if there is something to arrange."""
    if VARIABLE not in environment:
        return environment
    theirs = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": f"{HOOK}{os.pathsep}{theirs}" if theirs else HOOK}


def arrange() -> None:
    """Arrange what the variables of this process ask for, once. Says in a line what is not possible; raises nothing."""
    roots = os.environ.pop(VARIABLE, None)
    if roots is None:
        return
    path = list(sys.path)
    sys.path += roots.split(os.pathsep)  # the worker's own interpreter may not have our packages
    try:
        if STACKS in os.environ:
            from rdzv_plugins.stacks_on_request import register

            register()
        if _STORE in os.environ:
            from rdzv_plugins.torchrun.worker_transport import install

            install()
    except Exception as error:
        rank = os.environ.get("RANK", "?")
        text = f"rdzv-run: rank {rank} runs without --worker-stacks or worker_transport: {error!r}\n"
        os.write(2, text.encode())
    finally:
        sys.path[:] = path


_FOLDERS = (os.path.dirname(os.path.abspath(package.__path__[0])) for package in (rdzv_launcher, rdzv_plugins))

ROOTS = os.pathsep.join(dict.fromkeys(_FOLDERS))
"""The folders of our packages, for interpreters that are started without a path of their own, as in PATH."""
