"""The native load generator: many clients in one process, which check every reply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_plugins.errors import MissingDependency, RdzvError

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Load

_LOOPBACK = "127.0.0.1"


@contextmanager
def clients(who: str, port: int = 1, *, echo: bool = False) -> Iterator[Load]:
    """Clients of the server at ``port``, or of wherever each is told to connect to.

    What they raise in the block becomes ``DidNotFinish``, or a ``RdzvError`` that says ``who``: a wrong reply.
    """
    module = load_module()
    load = module.Load(_LOOPBACK, port, echo=echo)
    try:
        yield load
    except module.TimeLimit as error:
        raise DidNotFinish(str(error)) from None
    except module.LoadError as error:
        raise RdzvError(f"{who}: {error}") from None
    finally:
        load.close()


def load_module() -> ModuleType:
    """The native load generator. Raises ``MissingDependency`` where it was not built."""
    try:
        from rdzv_launcher.bench import _load as module
    except ImportError as error:
        raise MissingDependency(
            f"the load generator of `rdzv bench store` is not part of this installation of rdzv-plugins: {error}",
            remedy="It needs Linux, and a C++20 compiler when rdzv-plugins is installed: apt-get install g++ (or the "
            "like), then pip install --force-reinstall --no-cache-dir --no-binary rdzv-plugins rdzv-plugins.",
        ) from None
    return module
