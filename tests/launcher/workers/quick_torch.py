"""Import this before torch: half of the CPU time of importing torch, and of ending a process that has, is spent on
looking for garbage that is not there. What a script does afterwards is as ever."""

import gc
import importlib

gc.disable()
importlib.import_module("torch.distributed")
gc.freeze()
gc.enable()
