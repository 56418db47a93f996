"""This host's part of the all-reduce."""
