"""scikit-build-core as the build backend, but what pip asks first, name and dependencies, is answered without a build.

Where the compiler fails, pyproject.toml has the package built again without its native part (``if.failed``). With such
an override scikit-build-core itself offers no metadata: pip then compiles everything to learn it, and says for minutes
only "Preparing metadata". All that may differ between the two builds is the wheel's tag, which nobody asks for there.
"""

from __future__ import annotations

from typing import Any

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403 - the hooks of PEP 517 and PEP 660


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the wheel; its tag need not be the one in ``metadata_directory``."""
    return build.build_wheel(wheel_directory, config_settings)


try:
    from scikit_build_core.build.wheel import _build_wheel_impl
except ImportError:  # a version that has it elsewhere: metadata comes of a whole build again
    pass
else:

    def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
        """Write the metadata; returns the name of its directory."""
        return str(_build_wheel_impl(None, config_settings, metadata_directory, editable=False).wheel_filename)
