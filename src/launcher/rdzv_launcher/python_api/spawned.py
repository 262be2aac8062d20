"""What a worker runs if its function is spawned: the function is read from a file, and called.

A program of its own: an interpreter is given this file, which may import nothing of ours before ``sys.path`` is the
caller's.
"""

import sys


def main() -> None:
    """Run as ``spawned.py FILE LOCAL_RANK``."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    import pickle
    from multiprocessing import current_process, resource_tracker, spawn

    path, local_rank = sys.argv[1], int(sys.argv[2])
    with open(path, "rb") as file:
        preparation, tracker, results = pickle.load(file)
        call = file.read()
    if tracker >= 0:
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(preparation)
        function, arguments, keywords = pickle.loads(call)
    except BaseException as error:
        sys.path[:] = preparation["sys_path"]
        from rdzv_launcher.python_api.function import not_loaded

        not_loaded(error, results)
        sys.exit(1)
    finally:
        del current_process()._inheriting  # type: ignore[attr-defined]
    from rdzv_launcher.python_api.function import Call

    sys.exit(Call(function, arguments, keywords, results).run(local_rank))


if __name__ == "__main__":
    main()
