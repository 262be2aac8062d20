"""What a result becomes: a table on the terminal, a file with charts, and one page that shows several results."""
