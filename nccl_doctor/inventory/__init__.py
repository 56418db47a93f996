"""Reads hosts from files, patterns, Slurm and Kubernetes.

Invalid input raises HostsFileError (for a file) or UsageError (for any other source) with a one-sentence message.
"""
