"""Turns the start of an interpreter into a template of workers. Found by PYTHONPATH, imported by ``site``.

An interpreter imports ``sitecustomize`` when it is ready but has not looked at its program yet. Here it imports the
modules to preload, and waits. In each process that it forks, this file ends, and the interpreter continues as if
nothing had happened: it runs the program itself. So ``__main__``, tracebacks, exit codes and all the rest are its own
doing.
"""

import os
import sys


def _become_worker() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    settings = os.environ.pop("RDZV_TEMPLATE")
    if settings == "probe":
        os._exit(0)
    theirs = os.environ.pop("PYTHONPATH").partition(os.pathsep)[2]
    if theirs:
        os.environ["PYTHONPATH"] = theirs
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    fd, output, roots = settings.split(":", 2)
    path, modules = list(sys.path), set(sys.modules)
    sys.path += roots.split(os.pathsep)
    from rdzv_launcher.run.keeper.template import serve

    sys.path[:] = path
    # the preloaded modules and the program find their own copies
    for name in sys.modules.keys() - modules:
        if name.partition(".")[0] in ("rdzv_launcher", "rdzv_plugins"):
            del sys.modules[name]
    for root in roots.split(os.pathsep):
        if root not in path:
            sys.path_importer_cache.pop(root, None)
    serve(int(fd), int(output))


if "RDZV_TEMPLATE" in os.environ:
    try:
        _become_worker()
    except BaseException as error:  # a process that is not a worker must not run the program
        os.write(2, f"rdzv: a worker could not be forked: {type(error).__name__}: {error}\n".encode())
        os._exit(70)

del sys.modules["sitecustomize"]
# the user's own. If there is none, site ignores the error, and no trace of this file is left
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
