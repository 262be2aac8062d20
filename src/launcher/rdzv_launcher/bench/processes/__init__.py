"""What a benchmark runs beside itself: child processes, forks, the guard that ends them, and machines of their own."""
