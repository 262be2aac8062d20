"""The themes of the conformance suite, one class each."""
