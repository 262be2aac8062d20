"""Fault: every node is told that it has rank 0."""

import json

from right_coordination import Session, backend, service_of

from rdzv_plugins import Event, hookimpl


def changed(event):
    if event.value is None or not event.key.startswith("node/"):
        return event
    return Event(event.key, json.dumps({**json.loads(event.value), "rank": 0}).encode(), event.revision)


class SameRank(Session):
    def watch(self, prefix, on_events, *, after=0, timeout):
        return super().watch(prefix, lambda events: on_events([*map(changed, events)]), after=after, timeout=timeout)


@hookimpl
def rdzv_register_backends():
    return backend("rendezvous-same-rank", service_of(SameRank))
