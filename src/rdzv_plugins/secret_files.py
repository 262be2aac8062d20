"""Files with a password or a private key: a word to the user if others of this machine may read them, too."""

from __future__ import annotations

import functools
import logging
import os
import stat

logger = logging.getLogger(__name__)


def warn_if_others_can_read(path: str, option: str) -> None:
    """Say so once for each file, with what to do. Any thread may call; raises nothing.

    A warning, and not a refusal as with ssh: a secret that Kubernetes mounts is 0644 and root's, where nobody else is,
    and cannot be changed from inside. Its group is not looked at: that is how such a file is given to a user.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:  # whoever reads it says what is wrong
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
