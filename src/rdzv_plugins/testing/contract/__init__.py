"""What ``create`` returns, held against the contract of its kind: parts of theme ``backend``."""
