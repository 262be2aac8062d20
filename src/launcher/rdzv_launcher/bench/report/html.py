"""HTML by construction: text is escaped wherever it is put, and the page refers to nothing outside itself."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rdzv_launcher.bench.charts.style import printable


class Html(str):
    """Markup, which is not escaped again."""


def tag(name: str, /, *children: str | Iterable[str], **attributes: str | bool) -> Html:
    """An element. Children that are not ``Html`` are text; ``class_`` is written ``class``; False leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(value))}"'
        for key, value in attributes.items()
        if isinstance(value, str)
    )
    inner = "".join(_inner(child) for child in children)
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{inner}</{name}>")


_VOID = ("img", "meta", "br")


def _inner(child: str | Iterable[str]) -> str:
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return html.escape(printable(child))
    return "".join(_inner(each) for each in child)


def table(head: Iterable[str], rows: Iterable[Html]) -> Html:
    """A table, in its own box that scrolls sideways where the page is too narrow."""
    top = tag("tr", [tag("th", each, scope="col") for each in head])
    return tag("div", tag("table", tag("thead", top), tag("tbody", rows)), class_="wide")


def page(title: str, body: Iterable[str]) -> Html:
    """A whole document, without scripts. The policy in its head forbids everything that is not in it."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = [
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        Html(f"<style>{_CSS}</style>"),
    ]
    return Html("<!doctype html>\n" + tag("html", tag("head", head), tag("body", body), lang="en") + "\n")


_CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --faint: #d0d0d0; --soft: #f3f3f3; --mark: #fff0c2;
  --warn: #a02000; --link: #0058a8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #161616; --faint: #484848; --soft: #232323; --mark: #4a3c00; --warn: #ff9b80;
    --link: #7cc0ff }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  padding: 1rem 1.5rem 4rem; max-width: 110rem }
h1, h2, h3 { line-height: 1.25 }
h2 { margin-top: 3rem; border-bottom: 2px solid var(--faint) }
h3 { margin-top: 2.2rem }
a { color: var(--link) }
.wide { overflow-x: auto; margin: 0.8rem 0 }
table { border-collapse: collapse; font-size: 0.9rem }
th, td { border: 1px solid var(--faint); padding: 0.25rem 0.6rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; min-width: 4rem }
thead th { background: var(--soft) }
td.number { font-variant-numeric: tabular-nums }
tr.differs > * { background: var(--mark) }
small { display: block; font-size: 0.85rem; opacity: 0.9 }
.warn { color: var(--warn); font-weight: 600 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 46rem), 1fr)); gap: 1rem }
figure { margin: 0; max-width: 54rem }
figure img { width: 100%; height: auto; background: #ffffff; border: 1px solid var(--faint); border-radius: 6px }
figcaption { font-size: 0.9rem }
@media print {
  :root { --ink: #000000; --paper: #ffffff; --soft: #f3f3f3; --mark: #fff0c2; --faint: #b0b0b0; --warn: #a02000 }
  body { max-width: none; padding: 0; font-size: 10pt }
  figure, tr { break-inside: avoid }
  h2, h3 { break-after: avoid }
  .charts { display: block }
  .wide { overflow: visible }
  * { print-color-adjust: exact }
}
"""
