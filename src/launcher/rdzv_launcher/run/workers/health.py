"""The health check port, which torch only announces: its public build starts no server there, and neither do we."""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"


def warn_of_health_port(environ: Mapping[str, str]) -> bool:
    """Say that nobody will answer, if a port is named; False if none is."""
    port = environ.get(VARIABLE)
    if port is None:
        return False
    logger.warning(
        "%s=%s: nobody answers at that port, as under torchrun, which has no server for it either",
        VARIABLE,
        port,
    )
    return True
