"""Judges whether a running job is hanging, and which rank the others are waiting for. Pure functions."""
