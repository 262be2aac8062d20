"""What the benchmarks of whole jobs share: the launchers, and the steps from the first check to the caption."""
