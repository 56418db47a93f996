"""Reads and writes the lines that start a job with torchrun, env://, tcp:// or Slurm.

UsageError, with a message of one sentence, is raised for a job that can't be started in one of these ways.
"""
