"""Fault: each answer takes two seconds."""

import time

from right_coordination import Session, backend, service_of

from rdzv_plugins import hookimpl


class Slow(Session):
    def create(self, *args, **options):
        time.sleep(2)
        return super().create(*args, **options)

    def put(self, *args, **options):
        time.sleep(2)
        return super().put(*args, **options)

    def delete(self, *args, **options):
        time.sleep(2)
        return super().delete(*args, **options)

    def list(self, *args, **options):
        time.sleep(2)
        return super().list(*args, **options)


@hookimpl
def rdzv_register_backends():
    return backend("coordination-is-slow", service_of(Slow))
