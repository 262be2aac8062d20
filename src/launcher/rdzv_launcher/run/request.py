"""Turns parsed arguments into one frozen ``Request``; refuses contradictory ones before anything starts."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from types import MappingProxyType

from rdzv_launcher.run.devices import local_world_size
from rdzv_launcher.run.options import KEYS, OPTIONS, RunOptions
from rdzv_plugins.endpoints import Endpoint, parse_endpoint, require_meeting_point
from rdzv_plugins.errors import UsageError
from rdzv_plugins.installed import normalise
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request
from rdzv_plugins.options import parse_conf

DEFAULT_MASTER_PORT = 29500
_DEFAULT = "static"
"""The backend that torchrun uses without --rdzv-backend."""
_TIERED = "tiered"
"""The backend of torch_npu_run's --enable-tiered-parallel-tcpstore, which does not contradict the names below."""
_SAYS_THE_SAME = ("parallel", "parallel-epoll", "tiered", "tiered-proxy")
_LONGEST_ID = 200
"""The most bytes in a run id, which becomes part of the name of a directory for the workers' logs."""
_LEAST_HANG_S = 1.0
"""The least time-out for hangs: with a shorter one, a hang cannot be told from a busy machine."""
_OURS_ALONE = ("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts")
"""Flags that hardly any script has, too."""


def build_request(
    args: RunOptions,
    resolve: Callable[[Request], Request] = lambda request: request,
    meets_at: Callable[[str], str] = lambda backend: "",
) -> Request:
    """The request of one node, after ``resolve`` (the plug-ins) has filled in what was not given.

    ``meets_at`` returns, for a backend's name, where its nodes meet (``Backend.meets_at``). Raises ``UsageError`` that
    says what contradicts what.
    """
    given = frozenset({"entrypoint"}).union(*(OPTIONS[name].metadata.get("decides", ()) for name in args.given))
    min_nodes, max_nodes = _node_range(args.nnodes)
    conf = {key: value for key, value in parse_conf(args.rdzv_conf).items() if key not in KEYS}
    _check_times(args)
    _check_run_id(args.rdzv_id or DEFAULT_RUN_ID)
    if args.no_python and args.module:
        raise UsageError("--no-python and --module exclude each other", remedy="Keep one of them.")
    backend = _backend(args)
    endpoint = _endpoint(args, meets_at(backend))
    if endpoint and "master_addr" in args.given:  # it says nothing of where a service is
        given |= {"endpoint"}
    request = Request(
        backend=backend,
        run_id=args.rdzv_id or DEFAULT_RUN_ID,
        endpoint=endpoint,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=local_world_size(args.nproc_per_node),
        node_rank=args.node_rank,
        local_addr=args.local_addr,
        role=args.role,
        max_restarts=args.max_restarts,
        conf=MappingProxyType(conf),
        entrypoint=(args.training_script, *args.training_script_args),
        given=given,
    )
    if args.standalone:
        _refuse_company(args, meets_at(backend))
    else:
        request = _resolved(request, args, resolve, meets_at)
    return _standalone(request, forced=args.standalone)


def check_meeting_point(request: Request, args: RunOptions, meets_at: str) -> None:
    """Refuse several nodes without a place to meet. Called after the plug-ins: Slurm may know the place."""
    if meets_at == "service":  # the backend itself says what it needs
        return
    also = " (--master-port alone does not say on which machine)" if args.master_port else ""
    require_meeting_point(request.endpoint, request.max_nodes, also=also)


def check_script(args: RunOptions) -> None:
    """Refuse a script that does not exist: all workers would fail, again with each restart. Raises ``UsageError``.

    The same goes for the interpreter, which one of torch's variables may name.
    """
    script = args.training_script
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if not args.no_python and not shutil.which(python):
        raise UsageError(
            f"the workers' Python, PYTHON_EXEC={python}, does not exist or is not executable",
            remedy="Name another one, or unset the variable to use that of rdzv-run.",
        )
    if args.module and script.endswith(".py") and os.path.isfile(script):
        raise UsageError(f"-m {script}: that is a file, not the name of a module", remedy="Leave -m out.")
    if args.module or script == "-":
        return  # only the workers' Python knows where it looks for modules
    if args.no_python:
        why = "" if shutil.which(script) else "there is no such program, or it is not executable"
    elif os.path.isdir(script):
        why = "" if os.path.exists(f"{script}/__main__.py") else "it is a directory without __main__.py"
    elif os.access(script, os.R_OK):
        why = ""
    else:
        why = "it is not readable" if os.path.exists(script) else "there is no such file"
    if why:
        raise UsageError(f"the script {script} cannot be run: {why}", remedy=_instead_of(script, args))


def _instead_of(script: str, args: RunOptions) -> str:
    """What to do about a script that cannot be run."""
    if args.no_python and script.endswith(".py") and os.path.isfile(script):
        return f"Leave --no-python out, or name the interpreter: --no-python python {script}"
    if "preflight" in args.given and args.training_script_args and os.path.isfile(args.training_script_args[0]):
        return f"If {script} is the value of --preflight, write --preflight={script}."
    return "" if os.path.isabs(script) else f"Its path is looked up from {os.getcwd()}, on every node."


def flags_behind_script(args: RunOptions) -> list[str]:
    """Arguments of the script that look as if they were meant for the launcher, which has not got them itself."""
    names = {word.partition("=")[0]: word for word in args.training_script_args if word.startswith("--")}
    dests = {name[2:].replace("-", "_"): word for name, word in names.items()}
    return [word for dest, word in dests.items() if dest in _OURS_ALONE and dest not in args.given]


def _check_times(args: RunOptions) -> None:
    if not args.monitor_interval > 0:
        raise UsageError(f"--monitor-interval={args.monitor_interval:g} must be more than 0 seconds")
    if not args.exit_barrier_timeout > 0:
        raise UsageError(f"--exit-barrier-timeout={args.exit_barrier_timeout:g} must be more than 0 seconds")
    if 0 < args.hang_timeout < _LEAST_HANG_S:
        raise UsageError(
            f"--hang-timeout={args.hang_timeout:g} is too short",
            remedy=f"Use {_LEAST_HANG_S:g} s or more, and longer than all ranks may have to wait; 0 switches it off.",
        )


def _check_run_id(run_id: str) -> None:
    if "/" in run_id:
        raise UsageError(
            f"--rdzv-id={run_id} must not contain '/': it becomes part of a directory name",
            remedy="Use another character, for example a dot.",
        )
    try:
        size = len(run_id.encode())
    except UnicodeEncodeError:  # surrogates in place of what this locale could not decode
        raise UsageError(
            f"--rdzv-id={run_id!a} cannot be decoded with the encoding of this environment",
            remedy="Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, the same on all nodes; or use ASCII.",
        ) from None
    if not run_id.isprintable():
        raise UsageError(f"--rdzv-id={run_id!a} contains control characters", remedy="Use letters, digits, . - _")
    if size > _LONGEST_ID:
        raise UsageError(
            f"--rdzv-id={run_id[:40]}... has {size} bytes; at most {_LONGEST_ID} fit into a directory name",
            remedy="Use a shorter one.",
        )


def _node_range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        min_nodes, max_nodes = int(low), int(high if colon else low)
    except ValueError:
        raise UsageError(
            f"--nnodes={text} is not N or MIN:MAX", remedy="For example --nnodes=4 or --nnodes=2:4."
        ) from None
    if min_nodes < 1:
        raise UsageError(f"--nnodes={text}: at least one node is needed")
    if min_nodes > max_nodes:
        raise UsageError(
            f"--nnodes={text}: the minimum {min_nodes} is above the maximum {max_nodes}",
            remedy=f"Did you mean --nnodes={max_nodes}:{min_nodes}?",
        )
    return min_nodes, max_nodes


def _backend(args: RunOptions) -> str:
    tiered = str(args.enable_tiered_parallel_tcpstore).strip().lower()
    if tiered not in ("true", "false", "1", "0"):
        raise UsageError(
            f"--enable-tiered-parallel-tcpstore={args.enable_tiered_parallel_tcpstore} is neither true nor false"
        )
    # the name by which plain torchrun knows it: PET_RDZV_BACKEND may be set for both launchers
    backend = (args.rdzv_backend or _DEFAULT).removeprefix("rdzv-plugins.")
    if tiered in ("true", "1"):
        if args.rdzv_backend and normalise(backend) not in _SAYS_THE_SAME:
            raise UsageError(
                f"--enable-tiered-parallel-tcpstore=true contradicts --rdzv-backend={args.rdzv_backend}",
                remedy="Leave one of them out. With etcd, write --rdzv-conf store=tiered instead.",
            )
        return _TIERED
    return backend


def _endpoint(args: RunOptions, meets_at: str) -> str:
    """--rdzv-endpoint, or --master-addr and --master-port; both only if they say the same.

    If the endpoint is that of a service apart from the nodes, it says nothing about the master, which operators name to
    every program (Kubeflow Trainer sets PET_MASTER_ADDR and PET_MASTER_PORT).
    """
    if meets_at == "service" or (args.rdzv_endpoint and meets_at != "node"):
        return args.rdzv_endpoint
    if "," in args.rdzv_endpoint:
        _refuse_master(args)
        return args.rdzv_endpoint
    if not args.master_addr:
        if args.master_port is None:
            return args.rdzv_endpoint
        if not args.rdzv_endpoint:
            return str(Endpoint("127.0.0.1", args.master_port)) if _node_range(args.nnodes)[1] == 1 else ""
        endpoint = parse_endpoint(args.rdzv_endpoint, args.master_port)
        if endpoint.port != args.master_port:
            raise UsageError(
                f"--rdzv-endpoint={args.rdzv_endpoint} contradicts --master-port={args.master_port}",
                remedy="Give only one of them.",
            )
        return str(endpoint)
    port = DEFAULT_MASTER_PORT if args.master_port is None else args.master_port
    # torchrun takes --master-addr with or without brackets: it never carries a port
    master = parse_endpoint(_bracketed(args.master_addr), port, what="--master-addr")
    if args.rdzv_endpoint:
        endpoint = parse_endpoint(args.rdzv_endpoint, port)
        if endpoint.host != master.host or (args.master_port is not None and endpoint.port != master.port):
            raise UsageError(
                f"--rdzv-endpoint={args.rdzv_endpoint} contradicts --master-addr={args.master_addr}"
                + (f" --master-port={args.master_port}" if args.master_port is not None else ""),
                remedy="Give only one of them.",
            )
        return args.rdzv_endpoint
    return str(master)


def _refuse_master(args: RunOptions) -> None:
    """Refuse --master-addr and --master-port with several endpoints: they name one machine, unless it is the first.

    Kubeflow Trainer sets the variables of both for all nodes, and offers no way to leave them out.
    """
    if args.master_addr and args.master_port is not None:
        first = parse_endpoint(args.rdzv_endpoint.partition(",")[0], args.master_port)
        if first == parse_endpoint(_bracketed(args.master_addr), args.master_port, what="--master-addr"):
            return
    given = {"--master-addr": args.master_addr, "--master-port": args.master_port}
    flags = " and ".join(f"{flag}={value}" for flag, value in given.items() if value not in (None, ""))
    if flags:
        raise UsageError(
            f"--rdzv-endpoint={args.rdzv_endpoint} names several endpoints, which {flags} contradicts",
            remedy="Leave out one of them (--master-addr and --master-port may be set by PET_MASTER_ADDR and "
            "PET_MASTER_PORT).",
        )


def _resolved(
    request: Request, args: RunOptions, resolve: Callable[[Request], Request], meets_at: Callable[[str], str]
) -> Request:
    """The request after the plug-ins, one of which may choose a backend that meets at a service.

    The master is not where that is: then the plug-ins, which leave alone what is given, are asked once more without it.
    If a plug-in knows the machine, and --master-port is given alone, the plug-in's own choice of a port is not used.
    """
    resolved = resolve(request)
    if args.rdzv_endpoint:
        return resolved
    if meets_at(resolved.backend) == "service":
        if not request.endpoint:
            return resolved
        return resolve(dataclasses.replace(request, endpoint="", given=request.given - {"endpoint"}))
    if args.master_port is None or args.master_addr or "endpoint" not in resolved.given:
        return resolved
    hosts = [parse_endpoint(each, args.master_port).host for each in resolved.endpoint.split(",")]
    return dataclasses.replace(resolved, endpoint=",".join(str(Endpoint(host, args.master_port)) for host in hosts))


def _bracketed(address: str) -> str:
    return f"[{address}]" if address.count(":") > 1 and not address.startswith("[") else address


def _refuse_company(args: RunOptions, meets_at: str) -> None:
    """Refuse company: --standalone meets nobody. PET_MASTER_ADDR and node rank 0 may stay: operators set them."""
    named = args.master_addr if args.master_addr != os.environ.get("PET_MASTER_ADDR") else ""
    given = {"--rdzv-endpoint": args.rdzv_endpoint, "--master-addr": named, "--node-rank": args.node_rank}
    flags = " and ".join(f"{flag}={value}" for flag, value in given.items() if value)
    if flags and meets_at != "service":  # such backends say themselves what they do not need
        raise UsageError(
            f"--standalone is for one node that meets no other, which {flags} contradicts",
            remedy="Leave out --standalone, or the rest.",
        )


def _standalone(request: Request, *, forced: bool) -> Request:
    """One node without an address needs no endpoint and no id, only a free port.

    Where torchrun turns static into c10d, with --standalone and without, it stays static here: that starts a second
    sooner, without torch in the agent, and the workers get the same.
    """
    alone = normalise(request.backend) == _DEFAULT and request.max_nodes == 1 and not request.endpoint
    if not forced and not alone:
        return request
    if not forced and request.node_rank:
        raise UsageError(
            f"--node-rank={request.node_rank} is out of range for 1 node(s)",
            remedy="With one node it is 0, or left out.",
        )
    if forced and request.max_nodes > 1:
        raise UsageError(
            f"--standalone is for one node, --nnodes asks for {request.max_nodes}", remedy="Leave one of them out."
        )
    return dataclasses.replace(
        request,
        endpoint="",
        standalone=True,
        run_id=request.run_id if "run_id" in request.given and not forced else str(uuid.uuid4()),
        node_rank=None,
        given=request.given | {"backend", "endpoint", "run_id"},
    )
