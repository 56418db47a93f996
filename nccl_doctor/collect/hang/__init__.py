"""Finds, selects and samples the ranks of a running job."""
