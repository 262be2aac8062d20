"""The native load generator: many clients in one process, which check every reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_plugins.errors import MissingDependency, RdzvError

if TYPE_CHECKING:
    from rdzv_launcher.bench._load import Load, Proxies

_LOOPBACK = "127.0.0.1"


@contextmanager
def clients(who: str, port: int = 1, *, echo: bool = False) -> Iterator[Load]:
    """Clients of the server at ``port``, or of the address to which each is told to connect; see ``checked``."""
    load: Load = load_module().Load(_LOOPBACK, port, echo=echo)
    try:
        with checked(who):
            yield load
    finally:
        load.close()


@contextmanager
def proxies(who: str, roots: Sequence[str], count: int, workers: int) -> Iterator[Proxies]:
    """``count`` simulated proxies of the stores or proxies at ``roots``, each with ``workers``; see ``checked``."""
    simulated: Proxies = load_module().Proxies([(root, -1) for root in roots], count=count, workers=workers)
    try:
        with checked(who):
            yield simulated
    finally:
        simulated.close()


@contextmanager
def checked(who: str) -> Iterator[None]:
    """Turn errors of the load in the block into ``DidNotFinish`` or, for a wrong reply, ``RdzvError`` with ``who``."""
    module = load_module()
    try:
        yield
    except module.TimeLimit as error:
        raise DidNotFinish(str(error)) from None
    except module.LoadError as error:
        raise RdzvError(f"{who}: {error}") from None


def load_module() -> ModuleType:
    """The native load generator. Raises ``MissingDependency`` if it was not built."""
    try:
        from rdzv_launcher.bench import _load as module
    except ImportError as error:
        raise MissingDependency(
            f"the load generator of `rdzv bench store` is not part of this installation of rdzv-plugins: {error}",
            remedy="It needs Linux, and a C++20 compiler when rdzv-plugins is installed: apt-get install g++ (or the "
            "like), then pip install --force-reinstall --no-cache-dir --no-binary rdzv-plugins rdzv-plugins.",
        ) from None
    return module
