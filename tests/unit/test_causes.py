"""Why a worker has ended: tracebacks by the interpreter itself, and the kernel's counts of out-of-memory kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_launcher.run.stderr_tail import last_lines
from rdzv_launcher.run.workers.failures import LastTraceback, OomKills, cause_of, read_traceback

FILES = {
    "missing.py": "import os\nimport nothing_of_the_kind\n",
    "deep.py": "import missing\n",
    "calls.py": "def load():\n    raise OSError('libcudart.so.12: not found')\n\n\nload()\n",
    "library.py": "from calls import load\n",
    "broken.py": "def main(:\n    pass\n",
    "of_broken.py": "import broken\n",
    "lazy.py": "def main():\n    import nothing_of_the_kind\n\n\nmain()\n",
    "value.py": "def main():\n    raise ValueError('two\\nlines')\n\n\nmain()\n",
    "name.py": "def main():\n    step()\n\n\nmain()\n",
    "chained.py": "try:\n    import nothing_of_the_kind\nexcept ImportError as no:\n    raise ValueError from no\n",
    "noisy.py": "import sys\n\n\nsys.stderr.write('Error: nothing to do with it\\n')\nsys.exit(3)\n",
    "own.py": "class Bad(Exception):\n    pass\n\n\nraise Bad\n",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    for name, text in FILES.items():
        (directory / name).write_text(text)
    (directory / "nest0.py").write_text("import nothing_of_the_kind\n")
    for number in range(1, 15):
        (directory / f"nest{number}.py").write_text(f"import nest{number - 1}\n")
    return directory


def stderr_of(programs: Path, *arguments: str) -> tuple[str, ...]:
    ended = subprocess.run([sys.executable, *arguments], cwd=programs, capture_output=True, check=False)
    assert ended.returncode > 0
    return last_lines(ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "exception", "place", "importing", "of_the_text"),
    [
        ("deep.py", "ModuleNotFoundError", "missing.py:2", True, True),
        ("library.py", "OSError", "calls.py:2", True, False),
        ("of_broken.py", "SyntaxError", "broken.py:1", True, True),
        ("-m of_broken", "SyntaxError", "broken.py:1", True, True),
        ("nest14.py", "ModuleNotFoundError", "nest0.py:1", True, True),
        ("lazy.py", "ModuleNotFoundError", "lazy.py:2", False, True),
        ("-m value", "ValueError", "value.py:2", False, False),
        ("name.py", "NameError", "name.py:2", False, True),
        ("chained.py", "ValueError", "chained.py:4", False, False),
        ("own.py", "Bad", "own.py:5", False, False),
    ],
)
def test_a_real_traceback(
    programs: Path, arguments: str, exception: str, place: str, importing: bool, of_the_text: bool
) -> None:
    lines = stderr_of(programs, *arguments.split())
    found = read_traceback(lines)
    assert found is not None
    assert found.exception.rpartition(".")[2] == exception
    assert found.place.endswith(f"/{place}")
    assert (found.importing, found.is_of_the_text) == (importing, of_the_text)
    said = cause_of(1, lines, OomKills())
    assert said == (f"It failed while importing its modules: {found.exception} at {found.place}." if importing else "")


@pytest.mark.parametrize("arguments", ["nothing.py", "-m nothing_of_the_kind"])
def test_no_program_at_all(programs: Path, arguments: str) -> None:
    assert read_traceback(stderr_of(programs, *arguments.split())) == LastTraceback("", "", importing=True)


def test_what_is_no_traceback_is_none(programs: Path) -> None:
    assert read_traceback(stderr_of(programs, "noisy.py")) is None
    for lines in ((), ("",), ("Traceback (most recent call last):",), ('  File "a.py", line 3, in <module>',)):
        assert read_traceback(lines) is None


KILL = -int(signal.SIGKILL)
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {shown} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


def system(root: Path, mounts: str, cgroup: str, files: dict[str, str]) -> OomKills:
    for name, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return OomKills(root)


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
    assert "cgroup /job/step, whose limit is 64 MiB," in kills.describe(KILL)
    assert "killed 1 process(es) of cgroup /job/step" in kills.describe(1), "a data loader, say"
    kills.begin()
    assert kills.describe(1) == "", "those of an earlier generation"


@pytest.mark.parametrize(
    ("shown", "path", "directory"),
    [
        ("/", "/docker/7", "sys/fs/cgroup/memory/docker/7"),
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
    assert kills.describe(KILL).startswith("The kernel's out-of-memory killer killed it: cgroup /")
    assert "limit" not in kills.describe(KILL), "there is none"


def test_without_cgroups_the_count_of_the_machine_has_to_do(tmp_path: Path) -> None:
    kills = system(tmp_path, "", "", {"proc/vmstat": "nr_free_pages 7\noom_kill 4\n"})
    assert kills.describe(KILL) == "", "nobody can say whom it would have killed"
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 5\n")
    assert "killed 1 process(es) of this machine since the start of the workers" in kills.describe(KILL)


@pytest.mark.parametrize("text", ["", "no mounts at all\n", " - \n", "1 2 3 / /x rw - cgroup2\n"])
def test_a_system_that_tells_nothing_is_borne(tmp_path: Path, text: str) -> None:
    assert system(tmp_path, text, text, {}).describe(KILL) == ""
    assert OomKills(tmp_path / "nowhere").describe(KILL) == ""
