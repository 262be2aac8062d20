"""Fault: what was read once is read again, until the reader writes itself."""

from right_state import State, backend, path_of

from rdzv_plugins import hookimpl


class Stale(State):
    held = None

    def get_state(self):
        self.held = self.held or super().get_state()
        return self.held

    def set_state(self, state, token=None):
        self.held = None
        return super().set_state(state, token)


@hookimpl
def rdzv_register_backends():
    return backend("state-reads-stale", create=lambda request: Stale(path_of(request)))
