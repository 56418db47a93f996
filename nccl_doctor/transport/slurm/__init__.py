"""Runs commands on the nodes of a Slurm job, with one job step on each node."""
