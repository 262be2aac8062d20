"""rdzv logs on the directory of a job that has failed once, runs on, and loses its agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Cluster

from rdzv_launcher.run.workers.output.index import NAME, Index, WorkerRecord
from rdzv_launcher.tools import cli


def test_logs_of_a_job(cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    logs = cluster.directory / "logs"

    def rdzv(*options: str, code: int = 0) -> str:
        capfdbinary.readouterr()
        assert cli.main(["logs", str(logs), *options]) == code
        out, err = capfdbinary.readouterr()
        return (err if code == 2 else out).decode(errors="surrogateescape")

    agent = cluster.run("fails_once.py", nproc=4, restarts=1, options=["--redirects=3", f"--log-dir={logs}"])
    eventually(lambda: all((cluster.directory / f"up{rank}").exists() for rank in range(4)), lambda: agent.text)
    (index,) = logs.glob("*/index.jsonl")
    eventually(lambda: len(index.read_text().splitlines()) == 12, index.read_text)
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    assert [(each["event"], each["round"]) for each in lines] == [("started", 1)] * 4 + [("ended", 1)] * 4 + [
        ("started", 2)
    ] * 4
    ended = {each["rank"]: (each["exit_code"], each["stopped"]) for each in lines if each["event"] == "ended"}
    assert ended == {0: (-15, True), 1: (-15, True), 2: (3, False), 3: (-15, True)}

    assert rdzv().count("stdout.log (15 bytes)") == 8

    failed = rdzv("--failed")
    assert failed.count("rank 2 on ") == 1
    assert failed.endswith("  | \\x00\ufffd binary\n  | no end\n")
    assert "rank 1 on" not in failed

    words = rdzv("--tail=1", "--stream=stdout")
    assert [line for line in words.splitlines() if "|" in line] == [f"  | round 2 rank {rank}" for rank in range(4)]
    raw = (index.parent / "attempt_0/2/stderr.log").read_bytes().decode(errors="surrogateescape")
    assert rdzv("--rank=2", "--failed", "--stream=stderr") == raw == "\x00\udcff binary\nno end"
    assert rdzv("--rank=3") == f"==> {index.parent}/attempt_1/3/stdout.log <==\nround 2 rank 3\n"
    (data,) = json.loads(rdzv("--rank=2", "--round=1", "--json"))
    assert (data["worker"]["exit_code"], data["failed"]) == (3, True)

    for wrong in (["--rank=17"], ["--round=5"], ["--tail=0"], ["--failed", "--round=1"]):
        rdzv(*wrong, code=2)

    cluster.kill(agent.pid)
    agent.wait()
    with index.open("ab") as file:
        file.write(b"nonsense\n")
    assert rdzv("--tail=1", "--stream=stdout") == words
    index.write_text("".join(json.dumps(each) + "\n" for each in lines if each["round"] == 2))
    rdzv("--failed", code=1)
    stacks = index.parent / "stacks-here-1-1.log"
    stacks.write_text("the job hangs\n2 workers on 1 node: rank 1 is at a.py:3 in f\n\nmore\n")
    hung = rdzv("--failed").splitlines()
    assert hung[1:] == [f"the job hangs: {stacks}", "  | 2 workers on 1 node: rank 1 is at a.py:3 in f"]
    (cluster.directory / "over").touch()


def test_output_that_went_to_no_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Index()
    workers = [
        WorkerRecord("job", 1, 29501, each, each, "host", -1, None, path) for each, path in ((0, None), (1, "x"))
    ]
    index.begin(str(tmp_path / NAME), workers, None)
    index.started({0: 100, 1: 101})
    index.flush()
    assert cli.main(["logs", str(tmp_path), "--rank=0"]) == 2
    assert "rank 0" in capsys.readouterr().err
    assert cli.main(["logs", str(tmp_path), "--rank=1"]) == 0
    assert "rank 1" in capsys.readouterr().err


def test_a_directory_for_temporary_files_keeps_the_index_of_logs_that_stay(tmp_path: Path) -> None:
    from rdzv_launcher.run.run_directory import remove

    for name, log in (("with", "job/attempt_0/0/stdout.log"), ("without", "job/attempt_0/0/error.json")):
        (tmp_path / name / log).parent.mkdir(parents=True)
        (tmp_path / name / log).touch()
        (tmp_path / name / "job/index.jsonl").touch()
        remove(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["with"]
    assert (tmp_path / "with/job/index.jsonl").exists()
