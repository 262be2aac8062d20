"""``rdzv stacks``: where the workers of a job are in their code, the odd ones first."""
