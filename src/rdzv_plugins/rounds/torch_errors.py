"""Our errors as torch's: code around torch's agent catches torch's rendezvous errors by type."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import api

from rdzv_plugins import errors

_TORCH = (
    (errors.RendezvousTimeout, api.RendezvousTimeoutError),
    (errors.EndpointUnreachable, api.RendezvousConnectionError),
    (errors.AddressInUse, api.RendezvousConnectionError),
    (errors.RendezvousClosed, api.RendezvousClosedError),
    (errors.RendezvousFailed, api.RendezvousStateError),
)


def as_torch(error: errors.RendezvousFailed) -> errors.RendezvousFailed:
    """Turn an error into one that is also torch's rendezvous error of its kind."""
    both = _combined(type(error))
    twin: errors.RendezvousFailed = both.__new__(both, *error.args)
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error.__cause__
    return twin


def _combined(ours: type[errors.RendezvousFailed]) -> type[errors.RendezvousFailed]:
    torch_class = next(theirs for base, theirs in _TORCH if issubclass(ours, base))
    if issubclass(ours, torch_class):
        return ours
    return type(ours.__name__, (ours, torch_class), {"__module__": ours.__module__, "__doc__": ours.__doc__})
