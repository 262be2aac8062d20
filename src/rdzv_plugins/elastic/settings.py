"""The settings of an elastic node that the others compare with theirs (``rounds/settings_check.py``)."""

from __future__ import annotations

import os
from typing import Any

from rdzv_plugins.elastic.endpoint_options import places_of
from rdzv_plugins.elastic.keys import PROTOCOL
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.rounds.settings_check import COMMAND, WAY, digest, outline, signed, wanted
from rdzv_plugins.runtime import SYSTEM, Runtime


def settings_of(
    request: Request, backend: str, options: ElasticOptions, host: str, runtime: Runtime = SYSTEM
) -> dict[str, Any]:
    """This node's settings, and who it is: everything that each node of the job may read."""
    store, fanout, same_command = options.store, options.fanout, options.same_command
    settings = {
        "protocol": PROTOCOL,
        "run_id": request.run_id,
        "backend": backend,
        "nnodes": wanted(request.min_nodes, request.max_nodes),
        "store": store,
    }
    if request.entrypoint:  # plain torchrun does not provide it
        settings[WAY] = same_command
        if same_command != "no":
            compared = request.entrypoint if same_command == "arguments" else request.entrypoint[:1]
            settings[COMMAND] = digest(compared)
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":  # torch then computes ranks from its own number
        settings["nproc"] = request.nproc_per_node
    if fanout:
        settings["fanout"] = fanout  # who is whose parent is known from the rank alone
    for name in ("node_unit", "min_per_domain"):  # the leader uses its own
        if (value := getattr(options, name)) != 1:
            settings[name] = value
    if token_of(request) is not None:  # where nodes meet at a service of their own, one without would get this far
        settings["token"] = "given"
    if request.preflight:
        settings["preflight"] = ",".join(request.preflight)
    if places := places_of(request):
        settings["endpoints"] = ",".join(map(str, places))
    return signed(settings, host, runtime) | {COMMAND: outline(request.entrypoint)}
