"""Writes and reads the lines that start a job: torchrun, env://, tcp://, Slurm.

UsageError, with one sentence, is raised for a job that can't be started like this.
"""
