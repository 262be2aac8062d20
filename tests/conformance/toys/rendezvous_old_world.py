"""Fault: in a later round a node is told the size of its first one."""

import json

from right_coordination import Session, backend, service_of

from rdzv_plugins import Event, hookimpl


class OldWorld(Session):
    world = 0

    def watch(self, prefix, on_events, *, after=0, timeout):
        return super().watch(
            prefix, lambda events: on_events([*map(self.changed, events)]), after=after, timeout=timeout
        )

    def changed(self, event):
        if event.value is None or not event.key.startswith("node/"):
            return event
        place = json.loads(event.value)
        self.world = self.world or place.get("world", 0)
        return Event(event.key, json.dumps({**place, "world": self.world}).encode(), event.revision)


@hookimpl
def rdzv_register_backends():
    return backend("rendezvous-old-world", service_of(OldWorld))
