"""What a plug-in registers: a backend's name, what it promises, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rdzv_plugins.capabilities import Capability
from rdzv_plugins.interfaces.handler import RendezvousHandler, TorchHandler
from rdzv_plugins.interfaces.request import Request
from rdzv_plugins.interfaces.service_check import ServiceCheck
from rdzv_plugins.interfaces.state_backend import RendezvousBackend

if TYPE_CHECKING:
    from rdzv_plugins.coordination import CoordinationBackend
    from rdzv_plugins.run_status import RunStatus

Created: TypeAlias = "RendezvousHandler | TorchHandler | RendezvousBackend | CoordinationBackend"


@dataclass(frozen=True)
class Backend:
    """What a plug-in's ``rdzv_register_backends`` hook returns: a name and how to make it.

    Making a ``Backend`` must be cheap: ``rdzv backends`` lists all of them without importing torch.
    """

    name: str
    """The name that --rdzv-backend selects; case, ``-`` and ``_`` do not matter."""
    summary: str
    """One line about the backend, for lists."""
    create: Callable[[Request], Created]
    """Makes the handler, the coordination backend or the state backend of this node. May import and block.

    Called once on each node, in the agent's main thread. An ``RdzvError`` reaches the user unchanged, a
    ``ModuleNotFoundError`` as advice on what to install; anything else is a fault of the plug-in.
    """
    aliases: tuple[str, ...] = ()
    """Other names for the backend."""
    capabilities: frozenset[Capability] = frozenset()
    """What the backend promises; the conformance suite tries each."""
    options: type | None = None
    """A frozen dataclass whose fields are the accepted --rdzv-conf keys (see ``options.option``); None: no keys."""
    validate: Callable[[Request], object] | None = None
    """Checks the request, its options parsed, before anything starts; raises ``UsageError``. Must not block.

    Its result becomes the ``target`` of the request that the other functions get, so an endpoint is parsed once.
    """
    meets_at: Literal["", "node", "service"] = ""
    """Where the backend's nodes meet, if that is the same for all jobs; empty if it is not.

    ``node``: at one of them, which the endpoint names, so that --master-addr may name it, too. ``service``: apart from
    them, where other jobs may meet as well: a launch without --rdzv-id is refused, and --master-addr, which then says
    nothing about the endpoint, is ignored.
    """
    install: str = ""
    """The command that installs what ``create`` imports, for the error message."""
    imports: tuple[str, ...] = ()
    """The modules that ``create`` imports and that may not be installed: looked for, but not imported, where ``check``
    is called, so that ``rdzv backends`` and ``rdzv-run --check`` know that one is missing."""
    check: Callable[[], object] | None = None
    """Raises an ``RdzvError`` that says what is missing and what to do if this installation cannot use the backend.

    ``rdzv backends`` calls it for each list, and every launch calls it: it is quick, does not import torch, and makes
    no requests.
    """
    preflight: Callable[[Request, ExitStack], str] | None = None
    """Checks whether this node could meet the others now, for ``rdzv-run --check``; returns its finding as a sentence.

    Called instead of ``create``, with the same request. It takes a few seconds at most and leaves nothing behind: what
    it opens and others should find taken, such as a port that this node would serve, it puts on the ``ExitStack``,
    which is closed once everything is checked. Raises the ``RdzvError`` with which the launch would end. What may still
    become right, such as a node that is not there yet, is a warning of a logger below ``rdzv_plugins``.
    """
    recognise: Callable[[Request, float], str] | None = None
    """Tells what listens at the request's endpoint, if it is this backend's: "the rendezvous of run 'a' by ...", or "".

    Called for somebody who was given this endpoint and perhaps another backend: ``options`` is None, and the endpoint
    may have another form. Any thread may call it. It takes no longer than the given number of seconds, does not import
    torch, and changes nothing. An exception counts as "".
    """
    status: Callable[[Request, float], RunStatus] | None = None
    """Tells ``rdzv status`` what a run is doing; each step may take the given seconds. Changes nothing.

    The request has its options. Raises an ``RdzvError`` that says why nothing is known. None: the framework reads the
    keys of a coordination backend that ``meets_at`` a service; nothing is known about others.
    """
    health: Callable[[Request, float], Iterable[ServiceCheck]] | None = None
    """Tells ``rdzv doctor`` how the service is that answers at the endpoint: each member, its room, its way here.

    Gets the request that ``create`` would get, and how many seconds each step may take. Any thread may call it. Changes
    nothing of what it finds, and also tells what it can of a service that nodes cannot use now: ``preflight`` says that
    they cannot. Raises an ``RdzvError`` where nothing is known.
    """
