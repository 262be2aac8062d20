"""``python tests/torch_without_cuda.py VERSION DIRECTORY``: an environment with a CUDA build of torch, and no CUDA.

Of newer torch versions the registry has no CPU build, and what a CUDA build depends on is several GB. torch imports
without any of that when the libraries exist that it is linked with: each gets a stub, every function of which fails.
gloo and TCPStore work. Everything else in the environment is that of the interpreter that runs this.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

HERE = Path(sys.executable).parent
NO_DEVICE = 100
RETURN = f"mov w0, {NO_DEVICE}; ret" if platform.machine() == "aarch64" else f"movl ${NO_DEVICE}, %eax; ret"
"""What each function of a stub does: it returns cudaErrorNoDevice."""


def main(version: str, directory: Path) -> None:
    python = directory / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", directory], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-compile", f"torch=={version}"], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    (site / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for program in HERE.iterdir():
        copy_program(program, directory / "bin", python.absolute())
    make_stubs(site / "torch/lib")


def copy_program(program: Path, to: Path, python: Path) -> None:
    """Copy a console script, for the other interpreter."""
    interpreter = f"#!{HERE}/python".encode()
    if not program.is_file() or program.is_symlink() or not (text := program.read_bytes()).startswith(interpreter):
        return
    (to / program.name).write_bytes(f"#!{python}\n".encode() + text.partition(b"\n")[2])
    shutil.copymode(program, to / program.name)


def make_stubs(libraries: Path) -> None:
    """Create, beside torch's libraries, each that they need and that is not there."""
    files = sorted([*libraries.glob("*.so*"), *libraries.parent.glob("_C*.so")])
    needed = {name for file in files for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read(file, "-d"))}
    missing = sorted(name for name in needed - {file.name for file in files} if not on_this_machine(name))
    versions = {version: library for file in files for library, version in versions_needed(file) if library in missing}
    wanted, defined = defaultdict[str, set[str]](set), set[str]()
    for file in files:
        for line in read(file, "--dyn-syms").splitlines():
            words = line.split()
            if len(words) > 7 and words[0].rstrip(":").isdecimal():
                name, _, version = words[7].partition("@")
                if words[6] != "UND":
                    defined.add(name)
                elif words[4] == "GLOBAL":
                    wanted[version.strip("@")].add(name)
    for library in missing:
        of_library = {version: sorted(wanted[version]) for version in versions if versions[version] == library}
        # it does not matter which of the libraries has those that belong to none
        make_stub(libraries / library, of_library, sorted(wanted[""] - defined) if library == missing[-1] else [])


def versions_needed(file: Path) -> Iterator[tuple[str, str]]:
    """Each library of which ``file`` needs a version, and the version."""
    library = ""
    for kind, name in re.findall(r"\b(File|Name): (\S+)", read(file, "--version-info")):
        if kind == "File":
            library = name
        else:
            yield library, name


def make_stub(path: Path, versioned: Mapping[str, Sequence[str]], others: Sequence[str]) -> None:
    """Compile a library with these functions, by version."""
    names = [*chain(*versioned.values()), *others]
    functions = "".join(f".globl {name}\n.type {name}, @function\n{name}: {RETURN}\n" for name in names)
    nodes = "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versioned.items() if names)
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.s"), Path(scratch, "stub.map")
        source.write_text(f'.text\n{functions}.section .note.GNU-stack,"",@progbits\n')
        script.write_text(nodes)
        command = ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", path, source]
        subprocess.run([*command, *([f"-Wl,--version-script={script}"] if nodes else [])], check=True)


def read(file: Path, what: str) -> str:
    return subprocess.run(["readelf", "--wide", what, file], check=True, capture_output=True, text=True).stdout


def on_this_machine(name: str) -> bool:
    """Whether the dynamic linker finds the library."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, name], capture_output=True).returncode == 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
