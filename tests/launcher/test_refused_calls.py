"""What an agent and its keeper ask of the system at their start, refused one by one: done without, or a sentence.

Never an internal error: nobody can mend a sandbox, a file system or a limit by reporting it to us. Left out are calls
that cannot fail (getpid), those without which Python imports nothing (read, mmap, getdents64), and write, poll,
epoll_wait, accept4 and wait4, without which a program can neither say anything nor wait.
"""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys

import pytest
from kits.launcher import refused

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64"
    ),
    pytest.mark.timeout(600),
]


def numbers(text: str) -> dict[str, int]:
    """Of system calls, by name."""
    return {name: int(number) for name, number in (each.split() for each in text.split(","))}


DONE_WITHOUT = numbers("""
chmod 90, flock 73, memfd_create 319, mknodat 259, pidfd_open 434, prctl 157, prlimit64 302, readlink 89,
rename 82, rmdir 84, unlinkat 263
""")
NEEDED = numbers("""
bind 49, clock_nanosleep 230, clone 56, clone3 435, connect 42, dup2 33, epoll_create1 291, epoll_ctl 233,
eventfd2 290, fcntl 72, ftruncate 77, getpeername 52, getsockname 51, getsockopt 55, ioctl 16, listen 50,
mkdir 83, pipe2 293, recvfrom 45, recvmsg 47, sendto 44, setsid 112, setsockopt 54, socket 41, socketpair 53,
uname 63, unlink 87, waitid 247
""")
"""Some of these, too, may be done without on another kernel or C library: then the job runs."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""As Lustre, NFS and FUSE answer flock."""


@pytest.fixture(scope="module")
def ends() -> dict[tuple[str, int], tuple[int, str]]:
    """By call and errno, the exit code of its launch and all that it printed."""
    calls = DONE_WITHOUT | NEEDED
    cases = [*((name, errno.EPERM) for name in calls), *(("flock", each) for each in NO_LOCKS)]
    asked = json.dumps([([calls[name]], error) for name, error in cases])
    done = subprocess.run([sys.executable, refused.__file__, asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {case: (code, text) for case, (code, text) in zip(cases, found, strict=True)}


def test_the_job_runs_or_ends_with_a_sentence(ends: dict[tuple[str, int], tuple[int, str]]) -> None:
    for (name, _), (code, text) in ends.items():
        assert "Traceback" not in text, name
        assert code in ((0,) if name in DONE_WITHOUT else (0, 2, 68, 69, 71)), (name, text)
        assert code or "hello" in text.splitlines(), name
