"""``rdzv bench store``: what a request costs a store server."""
