"""The counters of our own backends' services: the ``probe`` functions of their harnesses."""

from __future__ import annotations

import http.client
import re
from collections import Counter

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.harness import ServiceCounts

_ANSWER_S = 60.0
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_METHOD = re.compile(r'grpc_method="(\w+)"')
_MESSAGES = "grpc_server_msg_received_total"
_KEEP_ALIVE = "LeaseKeepAlive"
_SYNCS = "etcd_disk_wal_fsync_duration_seconds_"


def of_native_store(endpoint: Endpoint) -> ServiceCounts:
    """The statistics of a native store. Raises ``RdzvError`` if it does not answer."""
    from rdzv_plugins.kvstore.native.framing import ask_statistics

    statistics = ask_statistics(endpoint, _ANSWER_S)
    requests = {name: count for name, count in statistics["requests"].items() if count and name != "framed"}
    signs = requests.pop("keep_alive", 0)
    return ServiceCounts(requests, signs, cpu_s=float(sum(loop["cpu_s"] for loop in statistics["loops"])))


def of_etcd(endpoint: Endpoint) -> ServiceCounts:
    """The metrics of an etcd member. A watch is one message on a stream that stays open. Raises ``OSError``."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        return parse_etcd_metrics(connection.getresponse().read().decode())
    finally:
        connection.close()


def parse_etcd_metrics(text: str) -> ServiceCounts:
    """What Prometheus' text format says about requests, signs of life and the disk."""
    requests: Counter[str] = Counter()
    syncs = {"count": 0.0, "sum": 0.0}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        if name == _MESSAGES and "etcdserverpb." in labels:
            method = _METHOD.search(labels)
            if method is not None and float(value):
                requests[method[1]] += int(float(value))
        elif name.startswith(_SYNCS):
            syncs[name.removeprefix(_SYNCS)] = float(value)
    signs = requests.pop(_KEEP_ALIVE, 0)
    return ServiceCounts(dict(requests), signs, int(syncs["count"]), syncs["sum"])
