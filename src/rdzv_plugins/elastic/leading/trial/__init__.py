"""What the leader does in a trial: who measures the way to whom, and what follows from it. No sockets, no clock."""
