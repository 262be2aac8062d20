"""Whether this agent lives and its workers work, told over HTTP to whoever watches over processes: kubelet, say."""
