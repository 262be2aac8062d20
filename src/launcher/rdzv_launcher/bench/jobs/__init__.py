"""What the benchmarks of whole jobs share: who launches, and the order from the first check to the caption."""
