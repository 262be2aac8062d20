"""Files with a password or a private key: warns the user if others on this machine may read them, too."""

from __future__ import annotations

import functools
import logging
import os
import stat

logger = logging.getLogger(__name__)


def warn_if_others_can_read(path: str, option: str) -> None:
    """Warn once for each file, and say what to do. Callable from any thread; raises nothing.

    It is a warning, not a refusal as in ssh: a secret mounted by Kubernetes has mode 0644 and belongs to root, in a
    place where there is nobody else, and cannot be changed from inside. Group permissions are ignored: they are how
    such a file is given to a user.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:  # whoever reads it reports what is wrong
        return
    if mode & stat.S_IROTH:
        _warn(path, option, mode)


@functools.cache
def _warn(path: str, option: str, mode: int) -> None:
    logger.warning(
        "--rdzv-conf %s=%s can be read by every user of this machine (mode %04o). If there are others: chmod 600 %s",
        option,
        path,
        mode,
        path,
    )
