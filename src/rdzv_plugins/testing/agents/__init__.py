"""Real commands as real processes: ``rdzv-run`` and torchrun as users start them."""
