"""Where this node's workers are in their code: read from outside, as JSON in answers, as text, and into files.

Begin with ``reading`` (a process, from outside) and ``reports`` (what nodes have said, in groups and as text).
"""
