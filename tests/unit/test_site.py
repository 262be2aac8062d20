"""The parts of the site that are ours: names in code that become links, and the menu. `make lint` builds all of it."""

import importlib.util
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def public_names() -> types.ModuleType:
    path = ROOT / "docs/site/public_names.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "anchor"),
    [
        ("<code>NodeLost</code>", "rdzv_plugins.errors.NodeLost"),
        ("<code>rdzv_plugins.errors.NodeLost</code>", "rdzv_plugins.errors.NodeLost"),
        ("<code>rdzv_plugins.Backend</code>", "rdzv_plugins.interfaces.Backend"),
        ("<code>notice()</code>", "rdzv_plugins.worker.notice"),
        ("<code>rdzv_assign_ranks</code>", "rdzv_assign_ranks"),
    ],
)
def test_a_public_name_in_code_is_a_link_to_its_text(public_names, code, anchor) -> None:
    linked = public_names.on_page_content(f"<p>See {code}.</p>")
    assert linked == f'<p>See <autoref identifier="{anchor}" optional>{code}</autoref>.</p>'


@pytest.mark.parametrize(
    "html",
    [
        "<p><code>rdzv-run</code> <code>NodeLost(1)</code> <code>NoSuchName</code></p>",
        '<h2 id="x">The <code>NodeLost</code></h2>',
        '<p><a href="errors.html">the <code>NodeLost</code></a></p>',
        "<pre><span></span><code>NodeLost</code></pre>",
    ],
)
def test_other_code_headings_links_and_blocks_stay(public_names, html) -> None:
    assert public_names.on_page_content(html) == html


def test_who_reads_the_first_page_runs_commands_of_the_readme() -> None:
    """They are tried there; the first page adds only arguments of the script."""
    first, readme = ((ROOT / name).read_text() for name in ("docs/index.md", "README.md"))
    commands = re.findall(
        r"^(?:rdzv|pip|etcd)\S* .*$", "\n".join(re.findall(r"```sh\n(.*?)```", first, re.DOTALL)), re.MULTILINE
    )
    assert len(commands) == 5
    for command in commands:
        assert command.removesuffix(" \\") in readme.splitlines()


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "native").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_goes_on_in_a_list_does_so_on_a_git_host_and_in_the_site(page) -> None:
    """They agree where a block in an item of a list is indented by four, and an item after such a block has space."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"\n\n {1,3}[^ \n].*", text)
    assert not re.findall(r"\n\n    .*\n(?:    .*\n)*- .*", text)
