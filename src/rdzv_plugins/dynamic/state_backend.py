"""A plug-in's state backend as torch's dynamic rendezvous needs it: no answer from the service becomes torch's error.

torch keeps a node's place from a thread of its own, which goes on after torch's errors and ends for good with others:
then the other nodes would count this one as lost even though the service has come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.distributed.elastic.rendezvous import api

from rdzv_plugins.errors import PluginError, RendezvousFailed
from rdzv_plugins.interfaces import RendezvousBackend, Token
from rdzv_plugins.torch_types.errors import as_torch

T = TypeVar("T")


class TorchStateBackend:
    """Passes everything on to ``inner``, and is equally thread-safe.

    Our own errors, and those of files and sockets, become torch's rendezvous errors; others are faults of the plug-in.
    """

    def __init__(self, inner: RendezvousBackend, back_off: Callable[[], object] = lambda: None) -> None:
        """``back_off`` is called after each write that another node has forestalled."""
        self._inner, self._back_off = inner, back_off
        self.lost: Exception | None = None
        """Why the rendezvous is of no use.

        Once this is set nothing is requested any more, though the state can be read.
        """

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._asked("get_state", self._inner.get_state)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = self._asked("set_state", lambda: self._inner.set_state(state, token))
        if found is not None and not found[2]:
            self._back_off()
        return found

    def _asked(self, method: str, ask: Callable[[], T]) -> T:
        if self.lost is not None:
            raise self.lost
        try:
            return ask()
        except api.RendezvousError:
            raise
        except PluginError as error:  # torch's thread ends with it unseen: the next one who asks is told, too
            self.lost = self.lost or error
            raise
        except RendezvousFailed as error:
            raise as_torch(error) from error.__cause__
        except OSError as error:  # including a time-out and a broken connection
            raise api.RendezvousConnectionError(
                f"{method} of backend {self._inner.name!r} has failed: {type(error).__name__}: {error}"
            ) from error
