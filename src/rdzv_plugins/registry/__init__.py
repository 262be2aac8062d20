"""The way from entry points to a named backend, or to the reason why there is none, and from there to a handler.

Begin with ``discovery`` (entry points, one by one) and ``catalog`` (backends by name), which know the contract alone;
then ``create`` (from a name to a handler) and ``rendezvous`` (that handler, with the hooks of plug-ins around it). What
a plug-in returns or raises is checked (``contract_checks``), and told with its name.
"""

from rdzv_plugins.registry.catalog import Catalog
from rdzv_plugins.registry.discovery import ENTRY_POINT_GROUP, PluginRecord
from rdzv_plugins.registry.manager import PluginHost

__all__ = ["ENTRY_POINT_GROUP", "Catalog", "PluginHost", "PluginRecord"]
