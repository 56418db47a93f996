"""Reads hosts from files, patterns, Slurm and Kubernetes.

Invalid input raises an exception with a one-sentence message, which is HostsFileError for a file and UsageError for
other sources.
"""
