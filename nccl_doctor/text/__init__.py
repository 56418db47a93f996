"""General helpers for host lists, addresses, shell lines, secrets, and files, independent of any cluster."""
