"""Sources of hosts: files, patterns, Slurm, Kubernetes.

Input that can't be understood raises HostsFileError if it is in a file, and UsageError otherwise, with a one-sentence
message.
"""
