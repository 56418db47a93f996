"""Containers on hosts, or a process's namespaces, in which commands run (hosts file: ``inside:``)."""
