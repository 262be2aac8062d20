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


def test_service_is_not_sought_at_the_master(asked):
    request = asked("--rdzv-backend=Service", "--nnodes=2")
    assert (request.endpoint, "endpoint" in request.given) == ("", False)


def test_plug_in_says_where_the_service_is_port_and_all(asked):
    assert asked("--rdzv-backend=service", endpoint="site:6379").endpoint == "site:6379"


def test_flag_says_where_the_service_is(asked):
    given = ["--rdzv-backend=service", "--rdzv-endpoint=there:1"]
    assert asked(*given, endpoint="site:6379").endpoint == "there:1"


def test_plug_in_may_choose_the_service(asked):
    assert asked("--nnodes=2", backend="service").endpoint == ""
    request = asked("--nnodes=2", backend="service", endpoint="site:6379")
    assert (request.backend, request.endpoint) == ("service", "site:6379")


def test_nodes_meet_at_the_master_whatever_a_plug_in_knows(asked):
    port = os.environ.get("PET_MASTER_PORT", "29500")
    host = os.environ.get("PET_MASTER_ADDR", "first")
    assert asked("--nnodes=2", endpoint="first:1").endpoint == f"{host}:{port}"
