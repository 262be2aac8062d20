"""``make wheels``: the sdist and all wheels, checked and tried. Nothing is uploaded.

    python release/wheels.py [--platform NAME] [--no-torch]

The sdist is made from the checkout, the wheels from the sdist. Each wheel for this machine is installed into an
environment of its own for each Python that it is for (all have to be here), and runs jobs there. It takes long: what
Python sees is compiled twelve times, store and C++ library once for each platform.
"""

from __future__ import annotations

import argparse
import platform as machine
import time
from collections.abc import Sequence

import builder
import platforms
import sdist
import trial
from version import version


def main(argv: Sequence[str] | None = None) -> None:
    """Raises ``CalledProcessError``, or ends the process with a sentence, at the first thing that is wrong."""
    names = [each.name for each in platforms.PLATFORMS]
    parser = argparse.ArgumentParser(prog="release/wheels.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--platform", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--no-torch", action="store_true", help="leave out the job with torch, which is downloaded")
    args = parser.parse_args(argv)
    wanted = [each for each in platforms.PLATFORMS if each.name in (args.platform or names)]
    number = version()
    source = sdist.build_sdist(builder.WORK / "source")
    say(f"sdist of {number}")
    for platform in wanted:
        for python in platforms.BUILT_WITH:
            say(builder.build_wheel(source, platform, python, number).name)
    here = platforms.Platform(machine.machine(), "glibc")
    if here not in wanted:
        return
    for python in platforms.PYTHONS:
        say(trial.without_torch(python, sdist.DIST / platforms.wheel_for(python, number, here)))
    if not args.no_torch:
        say(trial.with_torch(sdist.DIST / platforms.wheel_for(trial.TORCH_ON, number, here)))


_BEGAN = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the time since the start."""
    print(f"wheels: {time.monotonic() - _BEGAN:5.0f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
