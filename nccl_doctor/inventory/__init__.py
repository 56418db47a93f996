"""Reads hosts from files, patterns, Slurm and Kubernetes.

Invalid input in a file raises HostsFileError, and other invalid input raises UsageError, with a one-sentence message.
"""
