from rdzv_plugins.testing.every_theme import *  # noqa: F403 - on the harness of conftest.py
