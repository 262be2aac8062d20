"""Who is in which round, who is refused, and how a job ends: parts of theme ``rendezvous``."""
