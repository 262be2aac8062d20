"""The whole contract between the framework and its plug-ins.

A backend needs only the first hook; the others are optional, and a plug-in may also have just those. A plug-in is a
module named by an entry point of group ``rdzv_plugins``. It marks its functions with ``rdzv_plugins.hookimpl``. A hook
may take any subset of the arguments, by name.
"""

# docs/reference/hooks.md shows the docstrings below: a summary, and the sections Called, Arguments, Result, Errors and
# Example, each with what a plug-in has to know

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rdzv_plugins.interfaces import Backend, Node, NodeCheck, Outcome, RendezvousInfo, Request

PROJECT = "rdzv_plugins"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rdzv_register_backends() -> Backend | Iterable[Backend]:  # type: ignore[empty-body]
    """Provide one or more rendezvous backends.

    Called:
        Once, when the plug-in is loaded: by every ``rdzv-run``, by ``rdzv backends``, and by torchrun once a backend
        with our prefix is selected. So it must not import torch or a client library: ``create`` does.

    Result:
        A ``rdzv_plugins.Backend``, or several in a list or from a generator.

    Errors:
        An exception or any other result makes the plug-in broken. ``rdzv backends`` says why, a launch that selects it
        ends with exit code 69, and other launches go on without it.

    Example:
        ```python
        from rdzv_plugins import Backend, hookimpl


        def create(request):
            from my_package.client import MyState

            return MyState(request.endpoint, request.run_id)


        @hookimpl
        def rdzv_register_backends():
            return Backend(name="mystate", summary="the state of a run in my service", create=create)
        ```
    """


@hookspec
def rdzv_resolve_request(request: Request, backend: Backend | None) -> Mapping[str, Any] | None:
    """Fill in what the environment provides, for example a scheduler: node rank, endpoint, run id.

    Called:
        Once for each launch, after the command line is read and before the backend is made; once more if a plug-in has
        chosen a backend that meets at a service, and --master-addr was given. Not with ``--standalone``.

    Arguments:
        request: the launch as it is known so far. ``request.given`` has the names of the fields set by the user or by a
            plug-in that was asked before; ``request.options`` is None.
        backend: the requested ``Backend``; None if there is none of that name. It says where its nodes meet: an
            endpoint made from a node's name is right if ``backend.meets_at`` is ``node``. Its capabilities say whether
            a given node rank decides anything.

    Result:
        A mapping of ``Request`` fields, ``{"node_rank": 3, "endpoint": "10.0.0.1:29500"}``; or None. The user's values
        win over every plug-in; among plug-ins, the first to answer for a field wins. The ones we ship are asked after
        all others: ``hookimpl(trylast=True)``.

    Errors:
        A field that ``Request`` does not have, or a value of the wrong type, is an error of the plug-in: the node ends
        with exit code 69.

    Example:
        ```python
        import os

        from rdzv_plugins import hookimpl


        @hookimpl
        def rdzv_resolve_request():
            if "MY_SCHEDULER_RANK" not in os.environ:
                return None
            return {"node_rank": int(os.environ["MY_SCHEDULER_RANK"]), "run_id": os.environ["MY_SCHEDULER_JOB"]}
        ```
    """


@hookspec
def rdzv_before_join(request: Request) -> None:
    """Check this node before it joins a round, and keep it out if necessary.

    Called:
        Before every round, on every node, also before a restart. The round waits. Also by ``rdzv-run --check``, which
        joins no round.

    Arguments:
        request: the launch, complete; ``request.options`` are the backend's options.

    Result:
        Ignored.

    Errors:
        Raise ``rdzv_plugins.errors.JoinVetoed`` to keep this node out: it ends with exit code 77 and the message.

    Example:
        ```python
        import shutil

        from rdzv_plugins import hookimpl
        from rdzv_plugins.errors import JoinVetoed


        @hookimpl
        def rdzv_before_join(request):
            free = shutil.disk_usage("/").free
            if free < 2**20:
                raise JoinVetoed(f"run {request.run_id}: {free} bytes are free on this node", remedy="Drain it.")
        ```
    """


@hookspec
def rdzv_preflight(request: Request) -> NodeCheck | Iterable[NodeCheck] | None:
    """Test a part of this node that the framework does not know, such as a device.

    Called:
        If ``plugins`` is among the checks of ``--preflight``: on every node before every round, after
        ``rdzv_before_join``. The round waits, so be quick: a second or two.

    Arguments:
        request: the launch, complete; ``request.preflight`` has the names of the requested checks.

    Result:
        A ``rdzv_plugins.NodeCheck``, or several in a list or from a generator; or None. A node that is ``broken`` is
        left out of the round if there are enough others (``--nnodes=MIN:MAX``); so is one whose ``value`` is less than
        its peers' by the factor ``preflight_factor``. If there are not enough, a broken one ends the job with exit code
        83, and a slow one gets a warning.

    Errors:
        An exception, or any other result, ends this node with exit code 69: report what is wrong with the node as a
        ``NodeCheck``.

    Example:
        ```python
        import time

        from rdzv_plugins import NodeCheck, hookimpl


        @hookimpl
        def rdzv_preflight(request):
            began = time.perf_counter()
            total = sum(number * number for number in range(100_000))
            seconds = time.perf_counter() - began
            if total != 333_328_333_350_000:
                return NodeCheck("my device", "broken", f"it adds up to {total}")
            return NodeCheck("my device", value=0.1 / seconds, unit="M/s")
        ```
    """


@hookspec
def rdzv_after_join(request: Request, info: RendezvousInfo) -> None:
    """Get notified that a round is complete, with this node's rank in it.

    Called:
        After every completed round, before the workers start. They wait.

    Arguments:
        request: the launch, complete.
        info: the ``RendezvousInfo``. ``info.rank`` and ``info.world_size`` count nodes, ``info.bootstrap_store_info``
            says where the workers' store is, ``info.store`` is the agents' store of the round, with the methods of
            torch's ``Store`` and the errors of ``rdzv_plugins.errors``.

    Result:
        Ignored.

    Errors:
        An exception ends this node with exit code 69.

    Example:
        ```python
        from rdzv_plugins import hookimpl


        @hookimpl
        def rdzv_after_join(request, info):
            print(f"run {request.run_id}: node {info.rank} of {info.world_size}")
        ```
    """


@hookspec
def rdzv_assign_ranks(request: Request, nodes: Sequence[Node]) -> Sequence[str] | None:
    """Order the nodes of a round by topology, for example by switch.

    Called:
        When an elastic backend (``parallel``, or any ``CoordinationBackend``) forms a round, on the node that leads at
        that time, in a separate thread. So install the plug-in on every node, and let the answer depend on nothing but
        the arguments. The round waits for the answer. Not called for fewer than two such nodes: one that comes late has
        no choice.

    Arguments:
        request: the launch of the node that leads, complete.
        nodes: those that were not given a node rank and do not return to an old one, in order of arrival; the node that
            serves the endpoint is first. Each has ``node_id``, ``host``, ``address``, ``domain`` (empty if it has none)
            and ``nproc`` (0 from plain torchrun, which does not say).

    Result:
        The ids of ``nodes`` in the order of their ranks; ids that are left out come last. None: no opinion. The first
        plug-in to answer decides. Nodes of one domain stay together: then the result is the order within each domain,
        and new domains are ordered by the first node of each.

    Errors:
        An exception, or an answer with other ids, ends the job on all nodes with exit code 76 and the reason, which
        names the plug-in.

    Example:
        ```python
        from rdzv_plugins import hookimpl


        @hookimpl
        def rdzv_assign_ranks(nodes):
            return [node.node_id for node in sorted(nodes, key=lambda node: node.host)]
        ```
    """


@hookspec
def rdzv_worker_env(request: Request, env: Mapping[str, str]) -> Mapping[str, str] | None:
    """Add variables to one worker's environment.

    Called:
        For each worker of this node in every round, before it starts. Not from plain torchrun.

    Arguments:
        request: the launch, complete.
        env: the variables that the worker gets, as from torch: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
            TORCHELASTIC_RESTART_COUNT, ...

    Result:
        Variables to add, or None. Among plug-ins, the first to set a variable wins.

    Errors:
        An exception, or a result that is not a mapping, ends this node with exit code 69.

    Example:
        ```python
        from rdzv_plugins import hookimpl


        @hookimpl
        def rdzv_worker_env(env):
            return {"MY_LOG": f"/tmp/rank-{env['RANK']}.log"}
        ```
    """


@hookspec
def rdzv_shutdown(request: Request, outcome: Outcome) -> None:
    """Get notified how this node's part in the job ended.

    Called:
        Once, however it ended. Not if plain torchrun was ended by a signal.

    Arguments:
        request: the launch, complete.
        outcome: ``outcome.end`` is ``done`` (its workers succeeded), ``failed`` (the job is over for everybody) or
            ``lost`` (this node leaves: a signal, an error of its own, or a failure elsewhere); ``outcome.reason`` is a
            sentence, ``outcome.failure`` the worker that failed, if one did. Plain torchrun does not say how it ended:
            there it is always ``lost``.

    Result:
        Ignored.

    Errors:
        An exception is logged with the plug-in's name; other plug-ins are still called, and the exit code stays.

    Example:
        ```python
        from rdzv_plugins import hookimpl


        @hookimpl
        def rdzv_shutdown(request, outcome):
            print(f"run {request.run_id}: {outcome.end}: {outcome.reason}")
        ```
    """
