"""The command line of ``rdzv-run``, declared without torch: torchrun's flags and PET_* variables, and our own."""
