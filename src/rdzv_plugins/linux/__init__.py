"""What Linux tells of processes, and lets one say of itself. For processes, too, that import next to nothing else."""
