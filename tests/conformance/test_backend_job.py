"""The job of themes *backend* and *failure*: its requests, and its way through the suite's relay."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rdzv_plugins.interfaces import Request
from rdzv_plugins.testing.builtin import ParallelHarness
from rdzv_plugins.testing.contract import job as backend_job
from rdzv_plugins.testing.contract.job import ContractJob
from rdzv_plugins.testing.faults.relay import Relay
from rdzv_plugins.testing.faults.service import behind


def test_a_backend_that_checks_a_request_finds_the_variables_of_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    prepare = backend_job.prepare

    def looks(entry: Any, request: Request) -> Request:
        found.append(os.environ.get("CONFORMANCE_PASSWORD"))
        return prepare(entry, request)

    monkeypatch.setattr(backend_job, "prepare", looks)
    harness = ParallelHarness()
    harness.environment = {"CONFORMANCE_PASSWORD": "secret"}
    job = ContractJob(harness, tmp_path / "job", pytest.fail)
    job.prepared()
    assert found == ["secret"]
    assert "CONFORMANCE_PASSWORD" not in os.environ


@pytest.mark.parametrize(
    ("endpoint", "dialled"),
    [
        ("127.0.0.1:2379", "127.0.0.1:7"),
        ("192.0.2.2:2379", "127.0.0.1:7"),
        ("http://me@etcd.example.org:2379/path", "http://me@127.0.0.1:7/path"),
        ("[::1]:2379", "127.0.0.1:7"),
        ("localhost:2379", "localhost:7"),
    ],
)
def test_the_relay_is_dialled_on_this_machine_wherever_the_service_is(endpoint: str, dialled: str) -> None:
    job, relay = SimpleNamespace(endpoint=endpoint), SimpleNamespace(port=7)
    assert behind(cast(ContractJob, job), cast(Relay, relay)) == dialled
