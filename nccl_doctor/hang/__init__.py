"""Judges whether a running job hangs, and for which rank the others wait. Pure functions."""
