"""Where this node's workers are in their code: read from outside, as JSON for who asks, as text, and into files."""
