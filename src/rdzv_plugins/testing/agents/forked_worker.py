"""Workers without the seconds of ``import torch``: forks of the keeper of an agent that is a fork (``forked_agent``).

The product makes such a worker for a function called by ``elastic_launch`` with ``start_method="fork"``; here the
function is the script. This is only for scripts that ask for it by ``import quick_torch``, and only if no variable
differs that is read when an interpreter starts or torch is imported.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from rdzv_plugins.testing.agents.warm import asks_for_it
from rdzv_plugins.testing.forks import process


def arrange() -> None:
    """From now on, have the keepers of this process's forks start such workers."""
    keeper: Any = importlib.import_module("rdzv_launcher.run.keeper.keeper_process").KeeperProcess
    function_process = importlib.import_module("rdzv_launcher.run.keeper.function_process")
    differing = importlib.import_module("rdzv_launcher.run.keeper.program").differing
    be_like_new = importlib.import_module("rdzv_launcher.run.keeper.template")._be_like_new
    otherwise, before = keeper._instead, dict(os.environ)

    def instead(self: Any, asked: Any) -> Callable[[], None] | None:
        """Replaces the keeper's method of that name."""
        command, variables = asked.command, asked.environment
        plain = command[:2] == (sys.executable, "-u") and asks_for_it(command[2])
        read_by_torch = [name for name in variables if name.startswith("TORCH_") and not name.startswith("TORCH_NCCL_")]
        if self._inherited.function or not plain or differing(before, variables) or read_by_torch:
            fresh: Callable[[], None] | None = otherwise(self, asked)
            return fresh

        def function() -> int:
            process.show(command, variables)
            be_like_new(command, 3, variables)
            return run(command[2:])

        return lambda: function_process.run(function, variables, (), os.path.basename(sys.executable))

    keeper._instead = instead


def run(argv: tuple[str, ...]) -> int:
    """Run a script, the first of its arguments, and end as an interpreter does."""
    atexit._clear()  # those belong to the agent, as do logging handlers
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    for name in [*logging.root.manager.loggerDict]:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate, logger.disabled = True, False
    script = argv[0]
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    code: object = None
    try:
        with open(script, "rb") as file:
            exec(compile(file.read(), script, "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        here = error.__traceback__
        sys.excepthook(type(error), error, here.tb_next if here else None)
        code = 1
    if code:
        # a fresh interpreter takes its time to tidy up: workers that fail with a peer should end well after that one
        gc.unfreeze()
        gc.collect()
    process.end(code)
    raise AssertionError("not reached")
