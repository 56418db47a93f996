"""Reads hosts from files, patterns, Slurm and Kubernetes.

Invalid input raises HostsFileError if it is in a file, and UsageError otherwise, with a one-sentence message.
"""
