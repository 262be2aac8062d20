"""``rdzv bench transport``: what a request costs a worker, by each way to the store of its node."""
