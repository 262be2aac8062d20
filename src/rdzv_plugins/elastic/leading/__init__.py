"""What the leading node decides: the state machine of members and rounds, and what runs it.

``membership`` decides, by rules that each have a file without I/O (who is in a round, in which order, who is left out,
what an outage leaves); ``leader`` runs it, watches and publishes.
"""
