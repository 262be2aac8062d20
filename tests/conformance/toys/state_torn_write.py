"""Fault: it writes in place, so who is killed in between leaves a part of a state, or none."""

from right_state import State, backend, path_of

from rdzv_plugins import hookimpl


class Torn(State):
    def write(self, text):
        self._path.write_text(text)


def create(request):
    return Torn(path_of(request))


@hookimpl
def rdzv_register_backends():
    return backend("state-torn-write", create=create)
