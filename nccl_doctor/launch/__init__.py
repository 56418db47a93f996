"""Parses and generates the commands that start a job with torchrun, ``env://``, ``tcp://``, or Slurm.

If a launcher can't start a job, a UsageError with a one-sentence message is raised.
"""
