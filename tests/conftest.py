# the report of the conformance suite; pytest takes such a line from a top-level conftest only
pytest_plugins = ["rdzv_plugins.testing.plugin"]
