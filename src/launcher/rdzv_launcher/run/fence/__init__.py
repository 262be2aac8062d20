"""The fence around this node's workers: none acts for longer than the node's place in its round is known to hold."""
