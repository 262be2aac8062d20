"""The themes of the conformance suite, a class each."""
