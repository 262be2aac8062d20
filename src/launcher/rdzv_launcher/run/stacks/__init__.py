"""Where this node's workers are in their code: read from outside, as JSON for whoever asks, as text, and into files."""
