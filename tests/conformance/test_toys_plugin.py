"""Theme *plugin* finds what is wrong with a plug-in before a node has met another, and nothing in one that is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, check, environment, install, run

pytestmark = pytest.mark.thorough


def test_right_state_backend_passes(tmp_path: Path) -> None:
    checked = check(tmp_path, "state_right", "plugin")
    checked.must_pass()
    assert checked.names("gap") == {"test_nobody_at_the_endpoint"}  # it is a directory: nobody need be there


def test_import_of_torch(tmp_path: Path) -> None:
    checked = check(tmp_path, "plugin_imports_torch", "plugin", k="torch or fast")
    checked.must_fail("test_loading_imports_no_torch", "test_loading_is_fast", saying="import")
    assert "plugin_imports_torch imports torch when it is loaded" in checked.text


def test_import_of_a_client_library(tmp_path: Path) -> None:
    library = tmp_path / "library"
    (library / "redis_like_client-2.0.dist-info").mkdir(parents=True)
    (library / "redis_like_client.py").write_text("")
    metadata = library / "redis_like_client-2.0.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: redis-like-client\nVersion: 2.0\n")
    (metadata / "RECORD").write_text("redis_like_client.py,,\nredis_like_client-2.0.dist-info/METADATA,,\n")
    checked = check(tmp_path, "plugin_imports_client", "plugin", beside=[library], k="loading or name")
    checked.must_fail("test_loading_imports_no_client_library", saying="imports redis_like_client when it is loaded")


def test_slow_import(tmp_path: Path) -> None:
    checked = check(tmp_path, "plugin_is_slow", "plugin", k="loading")
    checked.must_fail("test_loading_is_fast", saying="s of CPU time")


def test_options_that_nobody_can_use(tmp_path: Path) -> None:
    checked = check(tmp_path, "plugin_options_unexplained", "plugin", k="option or default or type or range")
    broken = ("test_every_option_has_help", "test_options_have_types_that_text_can_give")
    checked.must_fail(*broken, "test_defaults_parse_from_their_text", "test_wrong_type_is_refused")
    assert "the default seconds=2.5 is refused when it is written" in checked.text
    assert "the help of option 'silent' is empty" in checked.text
    assert "option 'listed' is of type" in checked.text


def test_validate_that_raises_anything(tmp_path: Path) -> None:
    checked = check(tmp_path, "plugin_validate_raises", "plugin", k="endpoint or request")
    checked.must_fail("test_wrong_endpoint_is_refused", saying="refused by BrokenPlugin, not by UsageError")


def test_endpoint_that_is_not_named(tmp_path: Path) -> None:
    checked = check(tmp_path, "plugin_hides_endpoint", "plugin", harness="StateHarness", k="nobody")
    checked.must_fail("test_nobody_at_the_endpoint", saying="does not name the endpoint")


def test_entry_that_is_not_well_formed(tmp_path: Path) -> None:
    backend = "Plugin_Badly_Named"
    checked = check(tmp_path, "plugin_badly_named", "plugin", backend=backend, k="summary or alias")
    checked.must_fail("test_name_and_summary", "test_aliases")


def test_entry_point_of_another_name(tmp_path: Path) -> None:
    backend = "the-name-of-the-backend"
    checked = check(tmp_path, "plugin_of_another_name", "plugin", backend=backend, k="entry_point or alias")
    checked.must_fail("test_entry_point_has_the_name_of_the_backend", saying="rdzv-plugins.plugin-of-another-name")


def test_plugin_that_is_broken_is_named_before_any_test(tmp_path: Path) -> None:
    site = install(tmp_path, "plugin_is_broken")
    code, text = run([*CONFORMANCE, "plugin-is-broken"], environment(site), tmp_path)
    assert code == 69
    assert "plug-in 'plugin-is-broken' of rdzv-plugin-is-broken 1.0" in text
    assert "raised RuntimeError at import: not today" in text
