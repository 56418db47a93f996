"""Runs this host's part of the all-reduce."""
