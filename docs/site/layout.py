"""The site has the layout of the repository, so that a link leads to the same place on a git host and in the site.

MkDocs, as Markdown stays Markdown: with Sphinx a git host would show its directives as text.

A hook of MkDocs. Pages are the Markdown files of the repository, in docs/ or not. A file or folder that a page links to
and that is no page becomes one which shows it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "native/*.md", "examples/*/README.md")
SHOWN_AS_THEY_ARE = (".css", ".jsonl", ".svg")
_LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class Shown(File):
    """A page that shows a file of the repository, or lists a folder. It is not in the menu, nor found by the search."""

    def __init__(self, path: str, config: MkDocsConfig) -> None:
        super().__init__(
            path, None, config.site_dir, False, dest_uri=f"{path}.html", inclusion=InclusionLevel.NOT_IN_NAV
        )
        self.generated_by = "layout"

    def is_documentation_page(self) -> bool:
        return True

    @property
    def content_string(self) -> str:
        path = ROOT / self.src_uri
        body = "\n".join(_listed(path)) if path.is_dir() else f"`````{_language(path)}\n{path.read_text()}\n`````"
        return f"---\nsearch:\n  exclude: true\n---\n# {self.src_uri}\n\n{body}\n"


def _listed(folder: Path) -> Iterator[str]:
    for path in _within(folder):
        yield f"- [{path.name}]({folder.name}/{path.name})"


def _within(folder: Path) -> list[Path]:
    """What somebody wrote: no hidden files, nothing that is built."""
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"(?!build$|dist$)[^._].*|__init__\.py", path.name))


def _language(path: Path) -> str:
    return {".sbatch": "sh", ".service": "ini", "": "text"}.get(path.suffix, path.suffix[1:])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the menu names the folder."""
    config.nav = [_expanded(item) for item in config.nav or []]
    return config


def _expanded(item: Any) -> Any:
    if isinstance(item, dict):
        return {title: _expanded(value) for title, value in item.items()}
    if isinstance(item, list):
        return [_expanded(each) for each in item]
    if item.endswith("/"):
        return [str(path.relative_to(ROOT)) for path in _pages() if path.is_relative_to(ROOT / item)]
    return item


def _pages() -> list[Path]:
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what MkDocs found in docs/ by the files of the repository, under their names there."""
    ours = {str(path.relative_to(ROOT)): path for path in _pages()}
    ours |= {str(path.relative_to(ROOT)): path for path in ROOT.glob("docs/**/*") if path.suffix in SHOWN_AS_THEY_ARE}
    made = [file for file in files if file.src_dir != config.docs_dir]  # of the theme and of plug-ins
    made += [_file(name, config) for name in ours]
    linked = {target for name, path in ours.items() if path.suffix == ".md" for target in _links(name, path)}
    made += [Shown(name, config) for name in sorted(set(_reached(linked)) - set(ours))]
    return Files(made)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """In code in a table git hosts need a backslash before a bar, which Python-Markdown would show."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def _file(name: str, config: MkDocsConfig) -> File:
    file = File(name, str(ROOT), config.site_dir, False)
    if name == "README.md":
        file.dest_uri = "index.html"
    else:
        file.dest_uri = file.dest_uri.removeprefix("docs/")
    return file


def _links(name: str, path: Path) -> Iterator[str]:
    for target in _LINK.findall(_CODE.sub("", path.read_text())):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def _reached(names: set[str]) -> Iterator[str]:
    """The files and folders of these names that are there, with all that is in the folders."""
    for path in (ROOT / name for name in names):
        if path.is_dir():
            yield from _reached({str(each.relative_to(ROOT)) for each in _within(path)})
        if path.exists() and path.is_relative_to(ROOT):
            yield str(path.relative_to(ROOT))
