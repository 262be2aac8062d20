"""What runs in an interpreter before its program, if somebody has asked for that. Found by PYTHONPATH, run by ``site``.

An interpreter imports ``sitecustomize`` when it is ready but has not looked at its program yet. In a worker, what its
job has asked for is arranged here (``in_worker.py``). In a template of workers the modules to preload are imported,
and it waits; in each process that it forks, this file ends. Then the interpreter continues as if nothing had happened:
it runs the program itself. So ``__main__``, tracebacks, exit codes and all the rest are its own doing.
"""

import os
import sys


def _leave_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    theirs = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)[2]
    if theirs:
        os.environ["PYTHONPATH"] = theirs
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)


def _become_worker() -> None:
    settings = os.environ.pop("RDZV_TEMPLATE")
    if settings == "probe":
        os._exit(0)
    _leave_path()
    fd, output, roots = settings.split(":", 2)
    path, modules = list(sys.path), set(sys.modules)
    sys.path += roots.split(os.pathsep)
    from rdzv_launcher.run.supervisor.template import serve

    sys.path[:] = path
    # the preloaded modules and the program find their own copies
    for name in sys.modules.keys() - modules:
        if name.partition(".")[0] in ("rdzv_launcher", "rdzv_plugins"):
            del sys.modules[name]
    for root in roots.split(os.pathsep):
        if root not in path:
            sys.path_importer_cache.pop(root, None)
    serve(int(fd), int(output))


def _arrange() -> None:
    _leave_path()
    path = list(sys.path)
    sys.path += os.environ["RDZV_IN_WORKER"].split(os.pathsep)
    try:
        from rdzv_launcher.run.supervisor.in_worker import arrange

        arrange()
    finally:
        sys.path[:] = path


if "RDZV_TEMPLATE" in os.environ:
    try:
        _become_worker()
    except BaseException as error:  # a process that is not a worker must not run the program
        os.write(2, f"rdzv: a worker could not be forked: {type(error).__name__}: {error}\n".encode())
        os._exit(70)
elif "RDZV_IN_WORKER" in os.environ:
    try:
        _arrange()
    except Exception as error:  # a Python that is too old, for one: the program runs without it
        what = "--worker-stacks or worker_transport"
        os.write(2, ("rdzv-run: this worker runs without %s: %r\n" % (what, error)).encode())  # noqa: UP031

del sys.modules["sitecustomize"]
# the user's own. If there is none, site ignores the error, and no trace of this file is left
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
