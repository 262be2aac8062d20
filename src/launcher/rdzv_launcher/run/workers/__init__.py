"""All that a worker gets: its command, its variables, its streams and its error file; and what is known of its end.

Begin with ``spec`` (all that the flags say), ``worker_group`` (this node's part of a round), ``environment`` (every
variable that a worker finds is put together there) and ``starts``. What a flag asks of torch (NUMA, a timer, an event
log, another's log files) has files of its own, which import it then.
"""
