"""Judges a running job's ranks: does it stand still, and for which of them do the others wait. Pure."""
