"""The way from entry points to a named backend, or to the reason why there is none.

Begin with ``discovery`` (entry points, one by one) and ``catalog`` (backends by name). It knows the contract alone.
"""

from rdzv_plugins.host.catalog import Catalog
from rdzv_plugins.host.discovery import ENTRY_POINT_GROUP, PluginRecord
from rdzv_plugins.host.manager import PluginHost

__all__ = ["ENTRY_POINT_GROUP", "Catalog", "PluginHost", "PluginRecord"]
