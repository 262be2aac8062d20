"""What Linux tells about processes, and what a process can say about itself.

Also for processes that import next to nothing else.
"""
