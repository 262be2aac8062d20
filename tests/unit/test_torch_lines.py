"""torch says that a worker has failed: only where we have not."""

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from rdzv_launcher.run.torch_lines import failures_said_once


@pytest.mark.parametrize("said", [True, False])
def test_torchs_line_of_a_failed_worker(said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def fail() -> None:
        context = start_processes("w", "/bin/false", {0: ()}, {0: {}}, DefaultLogsSpecs(str(tmp_path)))
        assert context.wait().is_failed()

    with failures_said_once(lambda: said):
        fail()
    assert [each.message.startswith("failed (exitcode: 1) local_rank: 0 (pid: ") for each in caplog.records] == (
        [] if said else [True]
    )
    caplog.clear()
    fail()
    assert caplog.records, "afterwards all is as before"
