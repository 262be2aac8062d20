"""How a benchmark measures: settings, turns, readings, points with their ratios, manifest and results."""
