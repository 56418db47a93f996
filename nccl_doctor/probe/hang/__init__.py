"""The ranks of a running job on this host: what each rank is doing, and what it reports about collectives."""
