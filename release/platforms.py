"""The platforms and Pythons that wheels are made for: targets of the compiler, and tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TARGET_GLIBC = "2.28"
"""What the compiler is told: the headers, and which symbols there are."""
GLIBC, MUSL = "2_26", "1_2"
"""What auditwheel finds in the result, and the tags say: symbols that came with 2.27 and 2.28 are not used."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Those that a wheel is tried with."""
BUILT_WITH = PYTHONS[:3]
"""The last one makes the wheel for itself and all later ones: nanobind uses the stable ABI from there on."""


@dataclass(frozen=True)
class Platform:
    """A processor and a C library."""

    machine: str
    libc: str

    @property
    def name(self) -> str:
        return f"{self.machine}-{self.libc}"

    @property
    def target(self) -> str:
        """As zig calls it."""
        return f"{self.machine}-linux-gnu.{TARGET_GLIBC}" if self.libc == "glibc" else f"{self.machine}-linux-musl"

    @property
    def tag(self) -> str:
        """The platform tag of the wheel."""
        if self.libc == "glibc":
            return f"manylinux_{GLIBC}_{self.machine}"
        return f"musllinux_{MUSL}_{self.machine}"

    def suffix(self, python: str) -> str:
        """The name of an extension module ends so there, unless it has the stable ABI."""
        system = "gnu" if self.libc == "glibc" else "musl"
        return f".cpython-{python.replace('.', '')}-{self.machine}-linux-{system}.so"


PLATFORMS = tuple(Platform(machine, libc) for libc in ("glibc", "musl") for machine in ("x86_64", "aarch64"))


def python_tag(python: str) -> str:
    """Python and ABI tag of the wheel that is built with this Python."""
    tag = f"cp{python.replace('.', '')}"
    return f"{tag}-abi3" if python == BUILT_WITH[-1] else f"{tag}-{tag}"


def wheel_names(version: str, platforms: Iterable[Platform] = PLATFORMS) -> Iterator[str]:
    """The files that a release has, without the sdist."""
    for platform in platforms:
        for python in BUILT_WITH:
            yield f"rdzv_plugins-{version}-{python_tag(python)}-{platform.tag}.whl"


def wheel_for(python: str, version: str, platform: Platform) -> str:
    """The wheel that this Python installs."""
    built_with = python if python in BUILT_WITH else BUILT_WITH[-1]
    return f"rdzv_plugins-{version}-{python_tag(built_with)}-{platform.tag}.whl"
