"""Ranks of a running job: found, chosen, looked at."""
