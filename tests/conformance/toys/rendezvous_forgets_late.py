"""Fault: who leads is not told of a node that comes once there was a round."""

import json

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class ForgetsLate(Session):
    listed = frozenset()

    def list(self, prefix, *, timeout):
        held, revision = super().list(prefix, timeout=timeout)
        if not prefix:  # as who begins to lead does
            self.listed = frozenset(item.key for item in held)
        return held, revision

    def watch(self, prefix, on_events, *, after=0, timeout):
        known, rounds = set(self.listed), []

        def told(event):
            if event.value is not None and not rounds:
                known.add(event.key)
                rounds.extend(range(json.loads(event.value).get("reached", 0)))
            return event.key in known

        def filtered(events):
            left = [event for event in events if told(event)]
            if left:
                on_events(left)

        return super().watch(prefix, filtered if prefix == "members/" else on_events, after=after, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("rendezvous-forgets-late", service_of(ForgetsLate))
