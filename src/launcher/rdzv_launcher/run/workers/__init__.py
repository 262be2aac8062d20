"""All that a worker gets: its command, its variables, its streams and its error file; and what is known of its end.

Begin with ``spec`` (all that the flags say), ``worker_group`` (this node's part of a round), ``environment`` (every
variable that a worker finds, and what is started, are put together there). What a flag asks of torch (NUMA, a timer,
another's log files) imports it then.
"""
