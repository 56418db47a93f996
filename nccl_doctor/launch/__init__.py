"""Writes and reads the lines that start a job: torchrun, env://, tcp://, Slurm.

A job that can't be started like this raises UsageError with one sentence.
"""
