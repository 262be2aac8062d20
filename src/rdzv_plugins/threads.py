"""Threads of our own: one that dies of an error is never unseen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

logger = logging.getLogger(__name__)


class OwnThread(threading.Thread):
    """A daemon thread. An error that ends it is logged, and ``on_error`` is told, on the thread, if others rely on it.

    Without ``on_error`` nobody waits for what it does, or ``target`` tells them by itself.
    """

    def __init__(
        self,
        target: Callable[..., object],
        name: str,
        args: Iterable[Any] = (),
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self._on_error = on_error

    def run(self) -> None:
        """Call the target. Called by the thread itself."""
        try:
            super().run()
        except Exception as error:
            logger.exception("the thread %s of this process has ended by an error; please report it", self.name)
            if self._on_error is not None:
                self._on_error(error)
