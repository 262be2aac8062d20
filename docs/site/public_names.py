"""Where a page names something public in code, the site links it to its reference. A hook of MkDocs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

COMPATIBILITY = Path(__file__).parents[1] / "reference" / "compatibility.md"
_ROW = re.compile(r"^\| `(rdzv_plugins\.[\w.]+)` \| (`.*`) \|$", re.MULTILINE)
_CODE = re.compile(r"(?s)<(pre|a|h\d)\b.*?</\1>|<code>(?:rdzv_plugins\.(?:\w+\.)*)?(\w+)(?:\(\))?</code>")


def public_names() -> dict[str, str]:
    """Each public name with the anchor of its text: its path by the first module in the table, or a hook's heading."""
    table = COMPATIBILITY.read_text().partition("internal names")[0]
    named = [(name, module) for module, names in _ROW.findall(table) for name in re.findall(r"`(\w+)`", names)]
    anchors = {name: f"{module}.{name}" for name, module in reversed(named)}
    return {name: name if name.startswith("rdzv_") else anchor for name, anchor in anchors.items()}


NAMES = public_names()


def on_page_content(html: str, **_: Any) -> str:
    """Wrap each name in what the plug-in autorefs turns into a link."""

    def link(code: re.Match[str]) -> str:
        path = NAMES.get(code[2] or "")
        return f'<autoref identifier="{path}" optional>{code[0]}</autoref>' if path else code[0]

    return _CODE.sub(link, html)
