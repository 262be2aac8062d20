"""``rdzv bench rendezvous``: how long nodes take to join, and to join again after a loss."""
