"""The counters of our own backends' services: the ``probe`` functions of their harnesses."""

from __future__ import annotations

import http.client
import re
from collections import Counter

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.harness import ServiceCounts

_ANSWER_S = 60.0
_MESSAGES = re.compile(r'^grpc_server_msg_received_total\{(.*grpc_method="(\w+)".*)\} (\S+)$', re.MULTILINE)
_SYNCS = re.compile(r"^etcd_disk_wal_fsync_duration_seconds_(count|sum) (\S+)$", re.MULTILINE)


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
    requests = etcd_messages(text, "etcdserverpb.")
    syncs = {"count": 0.0, "sum": 0.0} | {name: float(value) for name, value in _SYNCS.findall(text)}
    signs = requests.pop("LeaseKeepAlive", 0)
    return ServiceCounts(dict(requests), signs, int(syncs["count"]), syncs["sum"])


def etcd_messages(text: str, service: str = "") -> Counter[str]:
    """How many messages a member got, by method: one for each request, and each single one of a stream.

    ``service`` is the beginning of the names of the services that count; by default, all do.
    """
    found: Counter[str] = Counter()
    for labels, method, value in _MESSAGES.findall(text):
        if f'grpc_service="{service}' in labels:
            found[method] += int(float(value))
    return +found
