"""Theme ``backend``: what ``create`` returns keeps the contract of its kind."""

from __future__ import annotations

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.interfaces import RendezvousBackend, RendezvousHandler
from rdzv_plugins.testing.backend_job import Job
from rdzv_plugins.testing.coordination_keys import CoordinationKeys
from rdzv_plugins.testing.coordination_sessions import CoordinationSessions
from rdzv_plugins.testing.coordination_watches import CoordinationWatches
from rdzv_plugins.testing.handler_contract import HandlerContract, handler_of
from rdzv_plugins.testing.state_contract import StateContract


class BackendTheme(CoordinationKeys, CoordinationSessions, CoordinationWatches, StateContract, HandlerContract):
    """The state with its token, sessions with keys and watches, or a handler's methods; the others are gaps."""

    theme = "backend"

    def test_create_returns_what_the_harness_says(self, job: Job) -> None:
        # The launcher looks for a handler first, then for a coordination backend, then for a state.
        created = handler_of(job, nodes=1) if job.harness.kind == "handler" else job.created()
        kinds = (
            ("handler", RendezvousHandler),
            ("coordination", CoordinationBackend),
            ("state", RendezvousBackend),
        )
        found = [kind for kind, contract in kinds if isinstance(created, contract)]
        assert found, f"{type(created).__name__} has the methods of no contract"
        assert found[0] == job.harness.kind, f"the harness says {job.harness.kind!r}, create() returned a {found[0]!r}"
