"""Code that examines the ranks of a running job on this host, their flight recorders and NCCL's RAS reports."""
