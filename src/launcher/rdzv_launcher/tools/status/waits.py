"""Who waits for which key of a keyspace, and since when, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdzv_launcher.tools.status.figures import duration
from rdzv_launcher.tools.status.tree import names, only_ahead
from rdzv_plugins.plain_text import some

_CLIENTS_SHOWN = 3


def waited_lines(keyspace: Mapping[str, Any]) -> list[str]:
    """The waits, longest first, or that there are none. Raises what reading statistics of another version raises."""
    ahead = only_ahead(keyspace)
    waited = [each for each in keyspace["waited"] if each["key"] not in ahead]
    unlisted = keyspace["waited_keys"] - len(keyspace["waited"])
    proxies = names(keyspace)
    lines = ["  waiting, longest first:"] if waited or unlisted else ["  nobody waits"]
    for each in waited:
        clients = (_client(client, proxies) for client in each["clients"])
        who = some(clients, _CLIENTS_SHOWN, of=each["waiters"])
        lines.append(f"    for {each['key']}: {each['waiters']} client(s) since {duration(each['oldest_s'])}: {who}")
    if unlisted:
        lines.append(f"    and for {unlisted} more keys")
    if ahead:
        lines.append(f"  proxies ask for {len(ahead)} key(s) ahead of their readers")
    return lines


def _client(client: Mapping[str, Any], proxies: Mapping[str, str]) -> str:
    address = str(client["address"])
    if address in proxies:
        return f"the proxy of {proxies[address]}"
    return f"{address} (pid {client['pid']})" if client["pid"] else address
