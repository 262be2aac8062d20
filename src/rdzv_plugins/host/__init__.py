"""From entry points to a named backend, and why not."""

from rdzv_plugins.host.catalog import Catalog
from rdzv_plugins.host.create import create_handler
from rdzv_plugins.host.discovery import ENTRY_POINT_GROUP, PluginRecord
from rdzv_plugins.host.manager import PluginHost

__all__ = ["ENTRY_POINT_GROUP", "Catalog", "PluginHost", "PluginRecord", "create_handler"]
