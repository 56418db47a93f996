"""Code that examines the ranks of a running job on this host and what the ranks report about collectives."""
