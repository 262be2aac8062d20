"""``rdzv status``: what a run does, and a native store with the proxies below it."""
