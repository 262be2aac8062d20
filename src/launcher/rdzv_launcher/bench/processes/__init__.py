"""What a benchmark runs besides itself: child processes, forks, the guard that ends them, and machines of their own."""
