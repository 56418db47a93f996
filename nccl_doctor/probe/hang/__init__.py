"""Code that examines the ranks of a running job on this host and their reports about collectives."""
