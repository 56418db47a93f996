"""The ranks of a running job on this host: what each is doing, and what it knows of collectives."""
