"""Every setting that torch's LaunchConfig holds reaches the workers, or is one that we deal with ourselves."""

from __future__ import annotations

import dataclasses
import inspect

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher.api import LaunchConfig

OURS = {
    *("min_nodes", "max_nodes", "run_id", "rdzv_backend", "rdzv_configs", "rdzv_endpoint", "rdzv_timeout"),
    *("nproc_per_node", "metrics_cfg", "signals_to_handle"),
}


def test_every_field_goes_somewhere():
    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    taken = {*inspect.signature(WorkerSpec).parameters, *inspect.signature(LocalElasticAgent).parameters}
    assert fields - taken == OURS
