"""Where this node's workers are in their code: read from outside, as JSON in answers, as text, and into files."""
