"""All that a worker gets: its command, its variables, its streams and its error file; and what is known of its end."""
