"""The kernel's counts of out-of-memory kills: its files as they are on various systems, and a kill that is real."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rdzv_launcher.run.workers.memory_kills import MemoryKills

KILL = -int(signal.SIGKILL)
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {shown} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def system(root: Path, mounts: str, cgroup: str, files: dict[str, str]) -> MemoryKills:
    for name, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return MemoryKills(root)


def test_cgroup_v2_with_the_limit_of_a_cgroup_around(tmp_path: Path) -> None:
    own = "sys/fs/cgroup/job/step"
    kills = system(
        tmp_path,
        V2,
        "0::/job/step\n",
        {
            f"{own}/memory.events": EVENTS.format(2),
            f"{own}/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": str(64 << 20),
        },
    )
    assert kills.describe(1) == ""
    assert kills.describe(KILL).startswith("Not by the kernel's out-of-memory killer")
    (tmp_path / own / "memory.events").write_text(EVENTS.format(3))
    assert kills.describe(KILL) == (
        "The kernel's out-of-memory killer has killed it: cgroup /job/step, whose limit is 64 MiB, had no memory left."
    )
    assert "has killed 1 process(es) of cgroup /job/step" in kills.describe(1), "a data loader, say"
    (tmp_path / own / "memory.events").write_text(EVENTS.format(5))
    assert "has killed 3 process(es) of cgroup /job/step" in kills.describe(KILL)
    kills.begin()
    assert kills.describe(1) == "", "those of an earlier generation"


@pytest.mark.parametrize(
    ("shown", "path", "directory"),
    [
        ("/", "/docker/7", "sys/fs/cgroup/memory/docker/7"),
        ("/docker/7", "/docker/7", "sys/fs/cgroup/memory"),
        ("/docker/7", "/docker/7/job", "sys/fs/cgroup/memory/job"),
        ("/", "/docker/7", "sys/fs/cgroup/memory"),  # the mount hides what is around a container
        ("/docker/7", "/other", "sys/fs/cgroup/memory"),
    ],
)
def test_cgroup_v1_as_containers_see_it(tmp_path: Path, shown: str, path: str, directory: str) -> None:
    kills = system(
        tmp_path,
        V2 + V1.format(shown=shown),
        f"7:pids:/\n4:memory:{path}\n0::/\n",
        {f"{directory}/memory.oom_control": CONTROL.format(0), f"{directory}/memory.limit_in_bytes": str(2**63 - 4096)},
    )
    (tmp_path / directory / "memory.oom_control").write_text(CONTROL.format(1))
    assert kills.describe(KILL).startswith("The kernel's out-of-memory killer has killed it: cgroup /")
    assert "limit" not in kills.describe(KILL), "there is none"


def test_without_cgroups_the_count_of_the_machine_has_to_do(tmp_path: Path) -> None:
    kills = system(tmp_path, "", "", {"proc/vmstat": "nr_free_pages 7\noom_kill 4\n"})
    assert kills.describe(KILL) == "", "nobody can say whom it would have killed"
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 5\n")
    assert "has killed 1 process(es) of this machine since the workers were started" in kills.describe(KILL)


@pytest.mark.parametrize("text", ["", "no mounts at all\n", " - \n", "1 2 3 / /x rw - cgroup2\n"])
def test_a_system_that_tells_nothing_is_borne(tmp_path: Path, text: str) -> None:
    assert system(tmp_path, text, text, {}).describe(KILL) == ""
    assert MemoryKills(tmp_path / "nowhere").describe(KILL) == ""


def enter(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def small_cgroup() -> Iterator[Callable[[], None]]:
    """Moves the process that calls it into a cgroup with 32 MiB of memory, where one can be made."""
    for mount, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        directory = Path(mount, f"rdzv-test-{uuid.uuid4().hex[:8]}")
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            (directory / limit).write_text(str(32 << 20))
        except OSError:  # no controller for memory here
            directory.rmdir()
            continue
        yield functools.partial(enter, directory)
        directory.rmdir()
        return
    pytest.skip("no cgroup with a limit can be made here: that needs root, and a hierarchy that may be written to")


WATCHES = """
import subprocess, sys
from rdzv_launcher.run.workers.memory_kills import MemoryKills
kills = MemoryKills()
other = subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
sys.stdout.write(kills.describe(other.returncode) + "\\n")
greedy = subprocess.run([sys.executable, "-c", "hold = bytearray(256 << 20)"])
sys.stdout.write(kills.describe(greedy.returncode) + "\\n")
"""


def test_a_real_kill_for_want_of_memory_is_told_from_any_other(small_cgroup: Callable[[], None]) -> None:
    told = subprocess.run(
        [sys.executable, "-c", WATCHES],
        preexec_fn=small_cgroup,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    other, greedy = told.stdout.splitlines()
    assert other.startswith("Not by the kernel's out-of-memory killer")
    assert greedy.startswith("The kernel's out-of-memory killer has killed it: cgroup /")
    assert "whose limit is 32 MiB" in greedy
