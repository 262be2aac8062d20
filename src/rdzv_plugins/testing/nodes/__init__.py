"""Nodes of a job as processes of their own, forked from a warm one and told what to do."""
