"""What is of this backend alone: its files."""

import fcntl
import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest
from rdzv_file import FileBackend, FileOptions

from rdzv_plugins.errors import EndpointUnreachable, RendezvousFailed


def backend(directory: Path, run_id: str = "job", **options: object) -> FileBackend:
    return FileBackend(str(directory), run_id, FileOptions(**options))


def test_who_dies_while_it_writes_leaves_the_state_that_holds(tmp_path: Path) -> None:
    dies, other = backend(tmp_path), backend(tmp_path)
    _, token, _ = dies.set_state(b"first")
    write = dies._files.write

    def dies_after(file, data):
        write(file, data)
        raise KeyboardInterrupt

    dies._files.write = dies_after  # the state is written, its number is not
    with pytest.raises(KeyboardInterrupt):
        dies.set_state(b"second", token)
    assert other.get_state() == (b"first", token)
    assert other.set_state(b"third", token) == (b"third", token + 1, True)


@pytest.mark.parametrize(("given", "bits"), [("600", 0o600), ("660", 0o660)])
def test_files_have_the_given_mode_whatever_the_umask_is(tmp_path: Path, given: str, bits: int) -> None:
    before = os.umask(0o077 if given == "660" else 0)
    try:
        one = backend(tmp_path, mode=given)
        _, token, _ = one.set_state(b"first")
        one.set_state(b"second", token)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("job.rdzv", "job.rdzv.0", "job.rdzv.1"), bits)


@pytest.mark.parametrize("run_id", ["..", "a/b", "../../a", "ä b"])
def test_a_run_id_is_no_path(tmp_path: Path, run_id: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    backend(inside, run_id).set_state(b"state")
    assert len(list(inside.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [inside]


def test_a_lock_that_stays_is_an_error_and_one_of_a_killed_process_is_free(tmp_path: Path) -> None:
    backend(tmp_path).set_state(b"state")
    fork = multiprocessing.get_context("fork")
    locked = fork.Event()
    holder = fork.Process(target=hold, args=(tmp_path / "job.rdzv", locked))
    holder.start()
    try:
        assert locked.wait(60)
        with pytest.raises(EndpointUnreachable, match=r"job\.rdzv was locked for 0\.1 s"):
            backend(tmp_path, lock_timeout=0.1).get_state()
    finally:
        holder.kill()
        holder.join()
    assert backend(tmp_path).get_state() == (b"state", 1)


def hold(path: Path, locked) -> None:
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        locked.set()
        signal.pause()


def test_a_directory_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(EndpointUnreachable, match="gone/job"):
        backend(tmp_path / "gone").get_state()


def test_a_file_of_something_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "job.rdzv").write_text("not a number")
    with pytest.raises(RendezvousFailed, match=r"cannot read .*job\.rdzv, which is not its own"):
        backend(tmp_path).set_state(b"state")
    assert (tmp_path / "job.rdzv").read_text() == "not a number"
