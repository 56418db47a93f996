"""Runs commands in containers on hosts, or in the namespaces of a process (``inside:`` in the hosts file)."""
