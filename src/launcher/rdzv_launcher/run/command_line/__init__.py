"""The command line of ``rdzv-run``, declared without torch: torchrun's flags and PET_* variables, and our own.

Begin with ``options`` (the kinds of them), ``torchrun`` and ``own`` (all of them); ``parsing`` puts them together.
"""
