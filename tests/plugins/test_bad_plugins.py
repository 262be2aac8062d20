"""Every kind of bad plug-in, really installed, all at once: each is named with its cause, none harms the others."""

import json
import re

import pytest
from plugins.conftest import Site


def registers(hook):
    """A module with that hook."""
    return f"from rdzv_plugins import Backend, hookimpl\n\n@hookimpl\n{hook}\n"


def backend(name, create="lambda request: None", more=""):
    """Such a module, whose backend has that ``create``."""
    made = f"Backend(name={name!r}, summary='a bad one', create={create}{more})"
    return registers(f"def rdzv_register_backends():\n    return {made}")


FAILED = {
    # at import
    "import_error": (
        "from rdzv_plugins import a_name_of_another_version",
        "cannot be imported: cannot import name 'a_name_of_another_version'",
    ),
    "raises_at_import": (
        "raise RuntimeError('the licence server said no\\nand said it twice')",
        "raised RuntimeError at import: the licence server said no",
    ),
    "exits_at_import": (
        "import sys\nsys.exit('this backend wants to be alone')",
        "raised SystemExit at import: this backend wants to be alone",
    ),
    "missing_dependency": (
        "import rdzv_absent_client",
        "needs module 'rdzv_absent_client', which is not installed",
    ),
    # against the contract
    "wrong_signature": (
        registers("def rdzv_register_backends(registry): ..."),
        "has a wrong hook signature: Argument(s) {'registry'}",
    ),
    "misspelt_hook": (
        registers("def rdzv_register_backend(): ..."),
        "implements 'rdzv_register_backend', which is not a hook; did you mean 'rdzv_register_backends'?",
    ),
    "unmarked_hook": (
        "def rdzv_register_backends(): ...",
        "implements no hook: rdzv_register_backends lacks the @hookimpl mark",
    ),
    "no_hooks": ("ANSWER = 42", "implements no hook"),
    "wrong_return": (
        registers("def rdzv_register_backends():\n    return {'name': 'wrong_return'}"),
        "returned dict from rdzv_register_backends",
    ),
    "returns_none": (
        registers("def rdzv_register_backends():\n    Backend(name='x', summary='s', create=print)"),
        "returned None",
    ),
}
"""The module of each that fails, and why it does."""
BAD = {kind: module for kind, (module, _) in FAILED.items()} | {
    # when they are used, or beside another
    "bad_create": backend("bad_create", "lambda request: 42"),
    "missing_dep_at_create": backend("missing_dep_at_create", "create", ", install='apt-get install absent-client'")
    + "def create(request):\n    import rdzv_absent_client\n",
    "twin_one": backend("twin"),
    "twin_two": backend("twin"),
    # torch's own handler as it is
    "slow_import": "import time\ntime.sleep(0.7)\n"
    + backend("slow_import", "create")
    + """
def create(request):
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    store, run = HashStore(), request.run_id
    nodes = request.min_nodes, request.max_nodes
    backend = C10dRendezvousBackend(store, run)
    return DynamicRendezvousHandler.from_backend(run, store, backend, *nodes, local_addr="127.0.0.1")
""",
}
EXTRA = "Requires-Dist: rdzv-absent-client>=2; extra == 'client'\nProvides-Extra: client\n"
# one write for the whole line: print() under python -u makes several, and two workers share the stream
WORKER = r"import os; os.write(1, 'rank {RANK} of {WORLD_SIZE}\n'.format(**os.environ).encode())"


def distribution(kind):
    return "rdzv-bad-" + kind.replace("_", "-")


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """All of them, and the program of a worker."""
    site = Site(tmp_path_factory.mktemp("bad"))
    (site.root / "worker.py").write_text(WORKER)
    for kind, module in BAD.items():
        plugin = "twin" if kind.startswith("twin") else kind
        site.add(f"rdzv_bad_{kind}", module, plugin, more=EXTRA if kind == "missing_dependency" else "")
    return site


def test_list_names_distribution_entry_point_and_cause_of_each_and_of_no_other(bad):
    result = bad.run("-m", "rdzv_launcher.tools", "backends", "--json")
    assert result.returncode == 0, result.stderr
    listed = json.loads(result.stdout)
    assert {failure["plugin"] for failure in listed["failed"]} == set(FAILED)
    for failure in listed["failed"]:
        kind = failure["plugin"]
        assert (failure["distribution"], failure["version"]) == (distribution(kind), "1.0")
        assert failure["entry_point"] == f"{kind} = rdzv_bad_{kind}"
        assert failure["error"].startswith(FAILED[kind][1])

    backends = {backend["name"]: backend for backend in listed["backends"]}
    assert backends["c10d"]["distribution"] == backends["static"]["distribution"] == "rdzv-plugins"
    (note,) = backends["slow_import"]["notes"]
    assert float(re.fullmatch(r"took (\d+\.\d) s to import", note)[1]) >= 0.5
    (absent,) = [failure for failure in listed["failed"] if failure["plugin"] == "missing_dependency"]
    assert "pip install 'rdzv-bad-missing-dependency[client]'" in absent["remedy"]
    (conflict,) = listed["conflicts"]
    assert all(each in conflict for each in ("'twin'", "rdzv-bad-twin-one 1.0", "rdzv-bad-twin-two 1.0"))


def test_launch_that_selects_none_of_them_runs_and_reports_each_in_one_line(bad):
    launched = bad.rdzv_run("--rdzv-backend=c10d", "--nproc-per-node=2", "worker.py")
    assert launched.returncode == 0, launched.stderr
    assert sorted(launched.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "Traceback" not in launched.stderr
    for kind, (_, cause) in FAILED.items():
        lines = [line for line in launched.stderr.splitlines() if distribution(kind) in line]
        (line,) = [line for line in lines if "s to import. RDZV_DISABLE_PLUGINS" not in line]  # a busy machine's disk
        assert all(each in line for each in (f"'{kind}'", cause, f"RDZV_DISABLE_PLUGINS={kind}")), line
    (line,) = [line for line in launched.stderr.splitlines() if "rdzv-bad-slow-import" in line]
    assert re.search(r"\d+\.\d s", line)


@pytest.mark.parametrize("kind", ["import_error", "exits_at_import", "wrong_signature", "returns_none"])
def test_selecting_a_broken_one_says_why_and_nothing_else(bad, kind):
    result = bad.rdzv_run(f"--rdzv-backend={kind}", "never.py")
    assert result.returncode == 69
    message = result.stderr.splitlines()[0]
    assert message.startswith("rdzv-run: error: ")
    assert all(each in message for each in (distribution(kind), f"{kind} = rdzv_bad_{kind}", FAILED[kind][1]))
    assert result.stderr.count("rdzv-run: error: ") == 1
    assert all(line.startswith("rdzv-run: ") for line in result.stderr.splitlines()), result.stderr


@pytest.mark.parametrize(
    ("flags", "code", "named", "remedy"),
    [
        (["--rdzv-backend=missing_dep_at_create"], 69, "'rdzv_absent_client'", "apt-get install absent-client"),
        (["--rdzv-backend=bad_create"], 69, "'bad_create' of rdzv-bad-bad-create 1.0", "a CoordinationBackend or"),
        (["--rdzv-backend=twin"], 69, "rdzv-bad-twin-two 1.0", "--rdzv-no-plugin"),
        (["--rdzv-no-plugin=bad_create", "--rdzv-backend=bad_create"], 2, "'bad_create'", "--rdzv-no-plugin"),
        (["--rdzv-no-plugin=rdzv-bad-twin-one", "--rdzv-backend=twin"], 69, "rdzv-bad-twin-two", ""),
    ],
)
def test_one_that_is_bad_when_it_is_used_or_switched_off_is_named_with_a_remedy(bad, flags, code, named, remedy):
    result = bad.rdzv_run(*flags, "never.py")
    assert result.returncode == code
    message, advice = result.stderr.splitlines()[-2:]
    assert message.startswith("rdzv-run: error: ")
    assert named in message
    assert remedy in advice
    assert "Traceback" not in result.stderr
    assert "twin-one" not in message or flags == ["--rdzv-backend=twin"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("missing_dep_at_create", "ModuleNotFoundError: No module named 'rdzv_absent_client'"),
        ("wrong_signature", "PluginValidationError"),
    ],
)
def test_debugging_shows_the_real_cause_chained(bad, kind, cause):
    result = bad.rdzv_run(f"--rdzv-backend={kind}", "never.py", RDZV_DEBUG="1")
    assert result.returncode == 69
    before, chained, after = result.stderr.partition("The above exception was the direct cause")
    assert cause in before
    assert chained
    assert "rdzv_plugins.errors." in after


@pytest.mark.thorough
def test_slow_one_works_and_torchs_own_handler_is_accepted_as_it_is(bad):
    result = bad.rdzv_run("--rdzv-backend=slow_import", "worker.py")
    assert (result.returncode, result.stdout) == (0, "rank 0 of 1\n"), result.stderr


def test_strict_stops_and_names_all_but_those_that_are_switched_off(bad):
    flags = ["--rdzv-backend=c10d", "--rdzv-no-plugin=raises_at_import", "--rdzv-no-plugin=misspelt_hook"]
    off = "no_hooks, RDZV_bad.wrong-signature, no_such_plugin"  # by entry point or distribution
    result = bad.rdzv_run(*flags, "never.py", RDZV_DISABLE_PLUGINS=off, PET_RDZV_STRICT="1")
    assert result.returncode == 69
    named = {kind for kind in FAILED if distribution(kind) in result.stderr}
    assert named == set(FAILED) - {"raises_at_import", "misspelt_hook", "no_hooks", "wrong_signature"}
    assert "'no_such_plugin'" in result.stderr


@pytest.mark.thorough
def test_torchrun_that_selects_a_broken_one_says_why(bad):
    result = bad.run("-m", "torch.distributed.run", "--rdzv-backend=rdzv-plugins.import_error", "never.py")
    assert result.returncode != 0
    assert "plug-in 'import_error' of rdzv-bad-import-error 1.0" in result.stderr
    assert FAILED["import_error"][1] in result.stderr
