"""The installed backends, as the plug-in host finds them. Needs no pytest: the benchmarks ask, too."""

from __future__ import annotations

import functools

from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry


@functools.cache
def entry(backend: str) -> Entry:
    """The entry of an installed backend. Raises ``UnknownBackend``, ``BrokenPlugin`` and the like."""
    return PluginHost.load().catalog.find(backend)
