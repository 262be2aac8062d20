"""Old generated code beside whatever protobuf is installed: in processes of their own, since it is loaded once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
NAMES = (MODE, "GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")


def python(code: str, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | env, check=True, capture_output=True, text=True, timeout=180
    ).stdout


LOAD = "from rdzv_plugins.backends.etcd.api import rpc; print(rpc.RangeRequest(key=b'k').key)"
SHOW = f"import os; print({{name: os.environ[name] for name in {NAMES} if name in os.environ}})"


@pytest.mark.parametrize("mode", ["", "upb", "python"])
def test_what_is_set_for_the_import_is_put_back(mode):
    set_before = {MODE: mode, "GRPC_VERBOSITY": "ERROR"} if mode else {}
    assert python(f"{LOAD}\n{SHOW}", **set_before) == f"b'k'\n{set_before}\n"


@pytest.mark.parametrize("mode", ["", "python"])
def test_protobuf_loaded_before_in_another_mode_is_told_apart_with_what_to_do(mode):
    said = python(
        f"""
import google.protobuf.descriptor
from rdzv_plugins.errors import BrokenPlugin
try:
    {LOAD}
except BrokenPlugin as error:
    print(error, error.remedy)""",
        **{MODE: mode} if mode else {},
    )
    assert (f"Set {MODE}=python" in said) == (not mode)
    assert ("b'k'" in said) == bool(mode)


def test_without_the_extra_the_message_says_how_to_install_it(tmp_path):
    (tmp_path / "etcd3.py").write_text("raise ModuleNotFoundError(\"No module named 'etcd3'\", name='etcd3')")
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_launcher", "--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-id=job", __file__],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 69, done.stderr
    assert "backend 'etcd' needs module 'etcd3', which is not installed" in done.stderr
    assert "pip install 'rdzv-plugins[etcd]'" in done.stderr
