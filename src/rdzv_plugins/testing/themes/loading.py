"""What loading a plug-in costs, and what it imports: measured in a fresh interpreter, which every launch has."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import distributions

from rdzv_plugins.host.discovery import PluginRecord
from rdzv_plugins.installed import normalise

_LIMIT_S = 120.0
_PROGRAM = """
import json, sys, time
from importlib.metadata import EntryPoint
from rdzv_plugins.host.discovery import PluginRecord
from rdzv_plugins.host.validation import Validator

name, value = sys.argv[1:]
before = set(sys.modules)
record = PluginRecord(name, value, "", "")
record.plugin = EntryPoint(name, value, "rdzv_plugins").load()
Validator().validate(record)
new = {module.partition(".")[0] for module in set(sys.modules) - before}
print(json.dumps({"seconds": time.process_time(), "modules": sorted(new), "error": record.error}))
"""


@dataclass(frozen=True)
class Loaded:
    """An interpreter that has loaded one plug-in and asked it for its backends."""

    seconds: float
    """CPU time in seconds, including the start of the interpreter."""
    modules: Collection[str]
    """Top-level names of what the plug-in has imported, including itself."""


def load(name: str, value: str) -> Loaded:
    """Load the entry point ``name = value``. Raises AssertionError with its output if that fails."""
    command = [sys.executable, "-c", _PROGRAM, name, value]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S)
    assert done.returncode == 0, f"loading {value} failed:\n{done.stderr}"
    data = json.loads(done.stdout.splitlines()[-1])  # it may print something itself
    assert not data["error"], f"the plug-in {value} {data['error']}"
    return Loaded(data["seconds"], data["modules"])


@functools.cache
def first_load(name: str, value: str) -> Loaded:
    """Load a plug-in as ``load`` does, once for all tests of this process."""
    return load(name, value)


def foreign(modules: Collection[str], record: PluginRecord) -> list[str]:
    """The modules installed by other distributions: neither the plug-in's own, nor of this project."""
    own = record.value.partition(":")[0].partition(".")[0]
    unknown = set(modules) - {*sys.stdlib_module_names, "rdzv_plugins", "pluggy", own}
    if not unknown:
        return []
    mine = normalise(record.distribution)
    others = [each for each in distributions() if normalise(each.metadata["Name"] or "") != mine]
    installed = {path.parts[0].partition(".")[0] for other in others for path in other.files or ()}
    return sorted(unknown & installed)
