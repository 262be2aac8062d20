"""Limits of the native store: what is one, and the limit of open files."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from rdzv_plugins.backends.tiered import TieredOptions
from rdzv_plugins.elastic.options import EndpointOptions, validate_endpoint
from rdzv_plugins.errors import OptionError, UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.options import parse_options

NAMES = [field.name for field in dataclasses.fields(StoreLimits)]
SECONDS = ["handshake_seconds", "stall_seconds"]


def test_a_number_that_is_no_limit_is_refused_by_name():
    """Zero stands for what there is: of connections and memory alone."""
    for name in NAMES:
        most = 1e6 if name in SECONDS else 2**62 if name == "stored_bytes" else 2**31 - 1
        assert getattr(StoreLimits(**{name: most}), name) == most
        may_be_0 = name in ("connections", "stored_bytes")
        for wrong in [-1, most + 1, float("nan"), *([] if may_be_0 else [0])]:
            with pytest.raises(ValueError, match=f"^{name}="):
                StoreLimits(**{name: wrong})
        assert not may_be_0 or getattr(StoreLimits(**{name: 0}), name) == 0


def test_as_an_option_it_is_refused_by_name():
    with pytest.raises(OptionError, match="stall_seconds") as caught:
        parse_options(StoreLimits, {"stall_seconds": "1000001"}, "rdzv serve")
    assert caught.value.exit_code == 2


RAISES = """
import resource
from rdzv_plugins.kvstore.native.limits import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(64, 200), (200, 200)])
def test_file_limit_becomes_what_the_system_allows(soft: int, hard: int):
    script = RAISES.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=True)
    assert (done.stdout, done.stderr) == ("200 200\n", "")


@pytest.mark.parametrize("options", [EndpointOptions, TieredOptions])
def test_a_node_that_serves_takes_each_by_the_same_name(options: type) -> None:
    given = {name: str(2000 + number) for number, name in enumerate(NAMES)}
    node, served = (parse_options(each, given, "it") for each in (options, StoreLimits))
    assert StoreLimits.among(node) == served
    assert StoreLimits.among(options()) == StoreLimits() == StoreLimits.among(object())


@pytest.mark.parametrize("name", ["sessions", "run_sessions"])
def test_fewer_sessions_than_nodes_are_refused(name: str) -> None:
    request = Request("parallel", "r", "localhost:1", min_nodes=1, max_nodes=3, nproc_per_node=1)
    validate_endpoint(dataclasses.replace(request, options=EndpointOptions(**{name: 3})))
    with pytest.raises(UsageError, match=f"{name}=2 .*--nnodes"):
        validate_endpoint(dataclasses.replace(request, options=EndpointOptions(**{name: 2})))
