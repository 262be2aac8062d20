"""Fault: a watch that was cancelled goes on."""

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Endless:
    def cancel(self):
        pass


class Talkative(Session):
    def watch(self, prefix, on_events, *, after=0, timeout):
        super().watch(prefix, on_events, after=after, timeout=timeout)
        return Endless()


@hookimpl
def rdzv_register_backends():
    return backend("coordination-calls-after-cancel", service_of(Talkative))
