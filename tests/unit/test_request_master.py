"""A service is not at the master, which operators name to every program; nor is it where a plug-in chooses one."""

import os
import types

import pytest

from rdzv_launcher.run.command_line.parsing import parse_arguments
from rdzv_launcher.run.request import build_request
from rdzv_plugins import Backend, hookimpl
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.discovery import PluginRecord
from rdzv_plugins.host.validation import Validator

MASTERS = [{"PET_MASTER_ADDR": "h"}, {"PET_MASTER_PORT": "29511"}, {"PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "29511"}]


@pytest.fixture(params=MASTERS, ids=" ".join)
def asked(request, monkeypatch):
    """The request of rdzv-run where an operator has set the master's variables, and a site's plug-in fills in more."""
    for name in os.environ:
        if name.startswith(("PET_", "RDZV_")):
            monkeypatch.delenv(name)
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)

    def ask(*argv, **filled_in):
        site = types.ModuleType("site_plugin")
        site.rdzv_register_backends = hookimpl(
            lambda: [
                Backend(name="service", summary="a stranger's", create=print, meets_at="service"),
                Backend(name="static", summary="at a node", create=print, meets_at="node"),
            ]
        )
        site.rdzv_resolve_request = hookimpl(lambda: filled_in)
        record = PluginRecord("site", "site_plugin", "dist", "1", plugin=site)
        Validator().validate(record)
        assert not record.error
        host = PluginHost([record])
        return build_request(parse_arguments([*argv, "train.py"]), host.resolve_request, host.catalog.meets_at)

    return ask


SERVICE = "--rdzv-backend=service"


@pytest.mark.parametrize(
    ("argv", "filled_in", "endpoint"),
    [
        (["--rdzv-backend=Service", "--nnodes=2"], {}, ""),
        ([SERVICE], {"endpoint": "site:6379"}, "site:6379"),
        ([SERVICE, "--rdzv-endpoint=there:1"], {"endpoint": "site:6379"}, "there:1"),
        (["--nnodes=2"], {"backend": "service"}, ""),
        (["--nnodes=2"], {"backend": "service", "endpoint": "site:6379"}, "site:6379"),
    ],
    ids=["nowhere", "where a plug-in says", "where a flag says", "a plug-in chooses it", "and says where it is"],
)
def test_service_is_not_sought_at_the_master(asked, argv, filled_in, endpoint):
    request = asked(*argv, **filled_in)
    assert (request.backend.lower(), request.endpoint) == ("service", endpoint)
    assert endpoint or "endpoint" not in request.given


def test_nodes_meet_at_the_master_whatever_a_plug_in_knows(asked):
    port = os.environ.get("PET_MASTER_PORT", "29500")
    host = os.environ.get("PET_MASTER_ADDR", "first")
    assert asked("--nnodes=2", endpoint="first:1").endpoint == f"{host}:{port}"
