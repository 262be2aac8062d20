"""``rdzv bench all``: one benchmark after the other, each in a process of its own, and a report of what they wrote."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.bench.all_arguments import Step
from launcher.bench.charts import require_matplotlib
from launcher.bench.ends import with_parent
from launcher.bench.report import write_report
from launcher.bench.results import SUFFIX, read_results
from rdzv_plugins.errors import RdzvError, UsageError


def run(steps: Sequence[Step], out: Path) -> int:
    """Run them and write ``out/report.html``; returns the exit code.

    Raises ``UsageError`` where ``out`` cannot be written to or holds results that cannot be read, before anything runs;
    ``MissingDependency``; and ``RdzvError`` at the end where a benchmark has failed: the others have run, and the
    report has what there is.
    """
    require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: cannot write to {out}: {error.strerror}") from None
    if any(out.glob(f"*{SUFFIX}")):
        read_results(out)  # what cannot be part of the report is better told now than after a quarter of an hour
    failed = []
    for number, step in enumerate(steps, start=1):
        words = ["bench", step.bench, *step.arguments, f"--out={out}"]
        print(f"[{number} of {len(steps)}] {shlex.join(['rdzv', *words])}\n", flush=True)
        began = time.monotonic()
        code = _run_one(words)
        if code:
            failed.append(f"{step.bench} ({_said(code)})")
        end = f"failed: {_said(code)}" if code else "done"
        print(f"\n[{number} of {len(steps)}] {step.bench}: {end}, {time.monotonic() - began:.0f} s\n", flush=True)
    if any(file.stat().st_size for file in out.glob(f"*{SUFFIX}")):
        print(f"wrote {write_report(out, out / 'report.html')}", flush=True)
    if failed:
        raise RdzvError(
            f"{len(failed)} of {len(steps)} benchmarks failed: {', '.join(failed)}",
            remedy="What each of them has said stands above; run one again alone, with the same arguments.",
        )
    return 0


def _run_one(words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "launcher.tools", *words]
    # what a benchmark has started ends with it, so it need not tidy up
    end = with_parent(signal.SIGTERM)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it got that too, and tidies up
            process.wait()
            raise


def _said(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
