"""Shows what the ranks of a running job on this host do, and what the ranks report about collectives."""
