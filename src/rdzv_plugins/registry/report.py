"""What ``rdzv backends`` shows: every backend, and every plug-in that failed and why."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.options import describe_options
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.manager import PluginHost


def as_data(host: PluginHost) -> dict[str, Any]:
    """The report as plain data. Its keys are stable: scripts read it through ``rdzv backends --json``."""
    return {
        "backends": [
            {
                "name": entry.backend.name,
                "aliases": list(entry.backend.aliases),
                "summary": entry.backend.summary,
                "capabilities": sorted(capability.value for capability in entry.backend.capabilities),
                "options": [asdict(info) for info in describe_options(entry.backend.options)],
                "distribution": entry.record.distribution,
                "version": entry.record.version,
                "entry_point": f"{entry.record.name} = {entry.record.value}",
                "import_seconds": round(entry.record.import_seconds, 4),
                "notes": entry.record.notes,
                "unusable": _unusable(entry),
            }
            for entry in host.catalog.entries()
        ],
        "failed": [
            {
                "plugin": record.name,
                "distribution": record.distribution,
                "version": record.version,
                "entry_point": f"{record.name} = {record.value}",
                "error": record.error,
                "remedy": record.remedy,
            }
            for record in host.failed
        ],
        "conflicts": host.catalog.conflicts(),
        "disabled": [f"{record.name} ({record.distribution})" for record in host.records if record.disabled],
    }


def _unusable(entry: Entry) -> dict[str, str] | None:
    """Why the backend cannot work in this installation, and what to do; None if it can, or has no such check."""
    try:
        entry.check()
    except RdzvError as error:
        return {"reason": str(error), "remedy": error.remedy}
    except Exception as error:  # the plug-in's fault, which must not hide the others
        return {"reason": f"its check() raised {type(error).__name__}: {error}", "remedy": ""}
    return None


def as_text(data: dict[str, Any]) -> str:
    """The report as text for a terminal."""
    lines: list[str] = []
    for backend in data["backends"]:
        names = ", ".join([backend["name"], *backend["aliases"]])
        lines.append(f"{names}  ({backend['distribution']} {backend['version']})")
        lines.append(f"    {backend['summary']}")
        lines.append(f"    capabilities: {', '.join(backend['capabilities']) or 'none'}")
        if backend["unusable"]:
            lines.append(f"    UNUSABLE HERE: {backend['unusable']['reason']}")
            lines += [f"    {backend['unusable']['remedy']}"] * bool(backend["unusable"]["remedy"])
        for note in backend["notes"]:
            lines.append(f"    note: {note}")
        if backend["options"]:
            lines.append("    --rdzv-conf options:")
        for info in backend["options"]:
            default = "unset" if info["default"] is None else info["default"]
            lines.append(f"      {info['name']}={default}: {info['help']} Accepts {info['type']}.")
        lines.append("")
    for failure in data["failed"]:
        lines.append(f"FAILED {failure['plugin']}  ({failure['distribution']} {failure['version']})")
        lines.append(f"    it {failure['error']} (entry point {failure['entry_point']})")
        if failure["remedy"]:
            lines.append(f"    {failure['remedy']}")
        lines.append("")
    lines += [f"CONFLICT {conflict}" for conflict in data["conflicts"]]
    lines += [f"disabled: {name}" for name in data["disabled"]]
    return "\n".join(lines).rstrip()
