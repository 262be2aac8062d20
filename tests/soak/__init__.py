"""``make soak``: a job to which faults happen at random, and what must hold whatever happens.

``schedule`` says which faults, from a seed alone; ``expectations`` what has to hold after them, and by when;
``job`` runs agents on hosts of their own around a ``service``; ``injector`` does the faults; ``checker`` judges what
the workers have written down; ``soak`` puts it together; ``diary`` keeps it, and makes the one line at the end.
"""
