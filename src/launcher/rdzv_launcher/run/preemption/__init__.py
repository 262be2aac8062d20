"""The notice before preemption: workers of all nodes are told, agree on a step, and have time to save it.

In come a signal here, or the notice of another node; out go a page, a file and a signal for the workers, and
``NoticeAnswered`` for the agent. ``settings`` reads the flags, ``node`` does the rest, on threads of its own. All nodes
that answer have accepted a step before it is agreed on.
"""
