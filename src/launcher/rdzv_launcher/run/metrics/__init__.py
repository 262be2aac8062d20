"""What agents and stores tell Prometheus: each figure is declared here once, and read when somebody asks."""
