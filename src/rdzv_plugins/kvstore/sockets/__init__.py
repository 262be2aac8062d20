"""Sockets: reaching an endpoint, listening at one, and waits that another thread can end."""
