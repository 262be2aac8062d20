"""Theme ``backend``: what ``create`` returns keeps the contract of its kind."""

from __future__ import annotations

from rdzv_plugins.testing.contract.ground import ContractGround
from rdzv_plugins.testing.contract.handler import HandlerContract
from rdzv_plugins.testing.contract.keys import CoordinationKeys
from rdzv_plugins.testing.contract.sessions import CoordinationSessions
from rdzv_plugins.testing.contract.state import StateContract
from rdzv_plugins.testing.contract.watches import CoordinationWatches


class BackendTheme(
    ContractGround, CoordinationKeys, CoordinationSessions, CoordinationWatches, StateContract, HandlerContract
):
    """Tests a state with its token, sessions with keys and watches, or a handler's methods; the others are gaps."""

    theme = "backend"
