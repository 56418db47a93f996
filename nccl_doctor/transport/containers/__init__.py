"""Containers on hosts, or namespaces of a process, in which commands run (``inside:`` in the hosts file)."""
