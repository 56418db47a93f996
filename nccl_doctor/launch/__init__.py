"""Parses and generates the commands that start a job with torchrun, ``env://``, ``tcp://``, or Slurm.

A job that a launcher can't start raises a UsageError with a one-sentence message.
"""
