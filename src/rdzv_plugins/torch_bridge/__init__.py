"""Our backends for plain torchrun, accelerate and torchx: ``--rdzv-backend=rdzv-plugins.<name>``.

torch loads the entry points of group ``torchrun.handlers`` when its elastic package is imported, calls each, and
registers what it returns. Ours registers one creator for every installed plug-in, under the name of its entry point,
without loading any: a third-party backend is reached in the same way as a built-in one, and a broken one matters only
when it is selected. The prefix is needed because torch refuses a second owner of a name.

Begin with ``bridge`` and ``torchrun_handler``. What is for workers (``worker_transport``) runs only in those
whose job asks for it.
"""

from rdzv_plugins.torch_bridge.bridge import PREFIX, register

__all__ = ["PREFIX", "register"]
