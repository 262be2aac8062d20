"""Several endpoints: which of them serves, and how a node moves from one to another.

``sight`` (where to go) stands on nothing; ``outlook`` is one endpoint, seen from the side; ``places`` are all of them
as one service, and what a node takes along.
"""
