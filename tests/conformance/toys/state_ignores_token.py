"""Fault: every write is done, with whatever token."""

from right_state import State, backend, path_of

from rdzv_plugins import hookimpl


class Careless(State):
    def set_state(self, state, token=None):
        held = self.get_state()
        return super().set_state(state, held[1] if held else None)


def create(request):
    return Careless(path_of(request))


@hookimpl
def rdzv_register_backends():
    return backend("state-ignores-token", create=create)
