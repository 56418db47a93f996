"""Nodes of a Slurm job: a step on each."""
