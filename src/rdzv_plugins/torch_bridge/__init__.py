"""Our backends for plain torchrun, accelerate and torchx: ``--rdzv-backend=rdzv-plugins.<name>``.

torch loads the entry points of group ``torchrun.handlers`` when its elastic package is imported, calls
each, and registers what it returns. Ours registers one creator for every plug-in that is installed,
under the name of its entry point, without loading any: a stranger's backend is reached the same way
as a built-in one, and a broken one is met only when it is selected. The prefix is there because
torch refuses a second owner of a name.
"""

from rdzv_plugins.torch_bridge.bridge import PREFIX, register

__all__ = ["PREFIX", "register"]
