"""A running job, looked at: its ranks on this host, what each of them does, and what it tells of its collectives."""
