"""``make soak``: real processes of a job on several hosts, to which faults happen at random, for minutes or hours.

The simulation tries orders of events by the thousand. Here is what only a kernel has: processes that are killed and
stopped, links that are down, a service that is restarted, descriptors and memory that grow, what is left behind.

``schedule`` says which faults, from a seed alone; ``job`` runs agents on hosts of their own; ``soak`` does the faults
and watches; ``checker`` judges what the workers have written down, ``leaks`` what is left and what grows; ``diary``
keeps it, and makes the one line at the end.
"""
