"""Hosts that are nodes of a Slurm job: a step on each."""
