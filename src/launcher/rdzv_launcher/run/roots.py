"""Where this project is located, for interpreters that are started without a path of their own."""

from __future__ import annotations

import os

import rdzv_launcher
import rdzv_plugins

_FOLDERS = (os.path.dirname(os.path.abspath(package.__path__[0])) for package in (rdzv_launcher, rdzv_plugins))

ROOTS = os.pathsep.join(dict.fromkeys(_FOLDERS))
"""The folders of its packages, in the form of a variable like PATH."""
