"""``rdzv bench tiered``: what the start of a job asks of the workers' store, with proxies and without them."""
