"""To be imported before torch: half of the CPU time of importing it, and of the end of a process that has, is spent on
looking for garbage that is not there. What a script does afterwards is as ever."""

import gc
import importlib

gc.disable()
importlib.import_module("torch.distributed")
gc.freeze()
gc.enable()
