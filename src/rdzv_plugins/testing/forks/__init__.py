"""Processes without the seconds of their imports: forks of one that has imported everything."""
