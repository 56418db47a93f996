"""The ranks of a running job on this host: what each of them does, and its information about collectives."""
