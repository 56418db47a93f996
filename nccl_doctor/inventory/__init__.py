"""Sources of hosts: files, patterns, Slurm, Kubernetes.

What can't be understood raises HostsFileError where it stands in a file, else UsageError; in one sentence.
"""
