"""What pip leaves of a distribution."""

from __future__ import annotations

from pathlib import Path


def leave(site: Path, name: str, points: str, version: str = "1.0", *, more: str = "", **modules: str) -> Path:
    """``site`` with the distribution's entry points and modules in it. ``more`` comes into its metadata."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
    (info / "entry_points.txt").write_text(points)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)
    return site
