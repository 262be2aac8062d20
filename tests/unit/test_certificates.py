"""Certificates of nodes before anything starts: what is missing, what is none, and what they ask of the options."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from kits.wire.tls_kit import Issued

from rdzv_plugins.assemble.create import with_options
from rdzv_plugins.certificates import NodeCertificates, certificates_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.kvstore.native.server import Renewing, StoreServer
from rdzv_plugins.runtime import SYSTEM


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("ours"))


def request_with(conf: Mapping[str, str], *, backend: str = "parallel", nodes: int = 2) -> Request:
    given: dict[str, Any] = {"conf": MappingProxyType(dict(conf)), "given": frozenset({"run_id"})}
    return Request(backend, "run", "127.0.0.1:1", min_nodes=nodes, max_nodes=nodes, nproc_per_node=1, **given)


def conf_of(ours: Issued, *names: str) -> dict[str, str]:
    return {name: str(getattr(ours, name)) for name in names or ("cacert", "cert", "key")}


def checked(conf: Mapping[str, str], **of: Any) -> Request:
    request = request_with(conf, **of)
    return with_options(PluginHost.load().catalog.find(request.backend), request)


def test_what_a_node_needs_and_with_tls_workers_have_proxies(ours: Issued) -> None:
    assert checked(conf_of(ours)).options.store == "tiered"
    assert checked({}).options.store == "parallel"
    assert checked(conf_of(ours) | {"store": "parallel"}, nodes=1).options.store == "parallel"
    for conf, words in (
        (conf_of(ours, "cacert", "key"), "key is given, and cert is not"),
        (conf_of(ours, "cacert"), "cacert is given, and cert and key is not"),
        (conf_of(ours) | {"store": "parallel"}, "store=parallel contradicts TLS"),
        (conf_of(ours) | {"store": "torch"}, "store=torch contradicts TLS"),
        (conf_of(ours) | {"worker_transport": "direct"}, "worker_transport=direct contradicts TLS"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            checked(conf)
        assert refused.value.remedy


def test_of_etcd_they_are_for_etcd_alone(ours: Issued) -> None:
    assert certificates_of(checked(conf_of(ours))) == ours.files
    assert certificates_of(request_with(conf_of(ours))) == ours.files
    assert certificates_of(checked({})) is None
    assert certificates_of(checked(conf_of(ours), backend="etcd")) is None


def test_the_context_is_that_of_the_files_now(ours: Issued, tmp_path: Path) -> None:
    mine = Issued(tmp_path / "mine")
    files: NodeCertificates = mine.files
    first = files.context()
    assert files.context() is first
    assert first.minimum_version is ssl.TLSVersion.TLSv1_3
    assert first.check_hostname
    assert not files.within_one_process().context().check_hostname
    mine.issue()
    second = files.context()
    assert second is not first
    fitted = files.fitting().texts
    assert fitted == files.texts()
    mine.cert.write_text("it is being written")
    assert files.context() is second
    assert files.fitting().texts == fitted != files.texts()
    assert mine.files.context() is second  # one for the whole process
    never = Issued(tmp_path / "never")
    never.cert.write_text("nothing")
    with pytest.raises(UsageError):
        never.files.context()


def test_what_begins_while_files_are_replaced_has_the_last_that_fitted(tmp_path: Path) -> None:
    """A node that has served nothing yet, for one, which has dialled the service with them."""
    mine = Issued(tmp_path / "mine")
    first = mine.cert.read_bytes()
    mine.files.check()
    mine.issue()
    new = mine.cert.read_bytes()
    mine.cert.write_bytes(first)  # the new key is there, and its certificate is not
    assert mine.files.fitting().texts.cert == first
    assert not mine.files.within_one_process().context().check_hostname
    renewed: list[bytes] = []
    with StoreServer("127.0.0.1", tls=mine.files) as server:
        assert ask_statistics(Endpoint("127.0.0.1", server.port), 60, tls=mine.files)["refused"] == {}
        mine.cert.write_bytes(new)
        assert mine.files.fitting().texts.cert == new
        assert ask_statistics(Endpoint("127.0.0.1", server.port), 60, tls=mine.files)["refused"] == {}

    begun_with = mine.files.fitting().stamp
    mine.issue()  # while the server begins
    renewing = Renewing(mine.files, begun_with, lambda texts: renewed.append(texts.cert), SYSTEM)
    renewing.look()
    renewing.close()
    assert renewed == [mine.cert.read_bytes()]
