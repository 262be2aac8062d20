"""Fault: it writes in place, so who is killed in between leaves a part of a state, or none."""

import time

from right_state import State, backend, path_of

from rdzv_plugins import hookimpl


class Torn(State):
    def write(self, text):
        with open(self._path, "w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            time.sleep(0.02)  # on a busy machine, and the tests are to find it on any
            file.write(text[len(text) // 2 :])


def create(request):
    return Torn(path_of(request))


@hookimpl
def rdzv_register_backends():
    return backend("state-torn-write", create=create)
