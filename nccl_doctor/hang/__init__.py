"""Judges whether a running job is hanging, and for which rank the others are waiting. Pure functions."""
