"""Services as children of the tests: what harnesses start, and what it has counted."""
