"""A launcher for the compiler: takes from another build what that build has made by the very same command.

CMake puts it in front of each call (``CMAKE_CXX_COMPILER_LAUNCHER``, ``CMAKE_CXX_LINKER_LAUNCHER``). The file that
``RDZV_MADE`` names says what `make` has made and by which commands (``Build.made``); whatever is not in it is really
run. So a wheel is configured, installed and packed as always, and two minutes of compiling the same again are saved.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


def key(words: list[str]) -> str:
    """A command, but for the directory of what it makes. Two builds have the same paths below their directories."""
    at = words.index("-o") + 1
    return json.dumps([*words[:at], os.path.basename(words[at]), *words[at + 1 :]])


class Build:
    """A build directory of ninja's, as it is. Nothing in it is changed."""

    def __init__(self, directory: Path, ninja: str) -> None:
        self._directory = directory
        self._ninja = ninja
        self.compiler: str | None = None
        self._commands: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = {}
        for line in self._ask("commands"):
            words = shlex.split(line)
            if "-o" in words:
                words = words[2:-2] if words[0] == ":" else words  # a link is ": && COMMAND && :"
                self._commands[words[words.index("-o") + 1]] = words
                self.compiler = words[0]
            elif "qc" in words:
                archive, *members = words[words.index("qc") + 1 : words.index("&&", words.index("qc"))]
                self._members[archive] = members
        self._read = self._dependencies()

    def made(self) -> dict[str, str]:
        """What is there and newer than all that it is made of, by the command that made it."""
        fresh = [output for output in self._commands if self._is_fresh(output)]
        return {key(self._commands[output]): str(self._directory / output) for output in fresh}

    def _ask(self, what: str) -> list[str]:
        command = [self._ninja, "-C", str(self._directory), "-t", what]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.splitlines()

    def _dependencies(self) -> dict[str, list[str]]:
        """Sources and headers of each object, as the compiler has told ninja."""
        found: dict[str, list[str]] = {}
        output = ""
        for line in self._ask("deps"):
            if line.startswith("    "):
                found.setdefault(output, []).append(line.strip())
            else:
                start = re.fullmatch(r"(\S+): #deps \d+, deps mtime \d+ \(VALID\)", line)
                output = start[1] if start else ""
        found.pop("", None)
        return found

    def _is_fresh(self, output: str) -> bool:
        if not (self._directory / output).exists():
            return False
        if output in self._read:
            inputs = self._read[output]
        else:
            inputs = self._members.get(output) or [
                word for word in self._commands.get(output, []) if word.endswith((".o", ".a"))
            ]
            if not inputs or not all(self._is_fresh(each) for each in inputs):
                return False
        return max(map(self._time, inputs)) <= self._time(output)

    @cache  # noqa: B019  # lives as long as the build is looked at
    def _time(self, path: str) -> float:
        """Of the last change, in ns; a file that is not there is newer than all others."""
        try:
            return os.stat(self._directory / path).st_mtime_ns
        except FileNotFoundError:
            return float("inf")


def main(words: list[str]) -> None:
    if "-o" in words:
        made = json.loads(Path(os.environ["RDZV_MADE"]).read_text()).get(key(words))
        if made is not None:
            shutil.copy(made, words[words.index("-o") + 1])
            return
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
