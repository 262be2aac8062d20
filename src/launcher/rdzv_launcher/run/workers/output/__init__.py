"""Where the workers' output goes: log directories as torchrun lays them out, and what is shown of them meanwhile."""
