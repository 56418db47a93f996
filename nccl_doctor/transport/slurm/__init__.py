"""Runs commands on the nodes of a Slurm job, as a step on each node."""
