"""Key-value stores: serving one, reaching one, and what a job keeps in it."""
