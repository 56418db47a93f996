"""Containers on hosts, or a process' namespaces, in which commands run: ``inside:`` of the hosts file."""
