"""Checks what ``create`` returns against the contract of its kind: parts of theme ``backend``."""
