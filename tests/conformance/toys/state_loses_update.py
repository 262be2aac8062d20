"""Fault: between the look at the token and the write, others may write."""

import json
import time

from right_state import State, backend, path_of

from rdzv_plugins import hookimpl


class Racing(State):
    def set_state(self, state, token=None):
        held = self.get_state()
        if token != (held[1] if held else None):
            return (*held, False) if held else None
        time.sleep(0.001)
        count = (token or 0) + 1
        with self.locked():
            self.write(json.dumps({"count": count, "state": state.hex()}))
        return state, count, True


def create(request):
    return Racing(path_of(request))


@hookimpl
def rdzv_register_backends():
    return backend("state-loses-update", create=create)
