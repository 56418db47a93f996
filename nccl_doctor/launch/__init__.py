"""The lines that start a job, written and read: torchrun, env://, tcp://, Slurm.

What can't be started so raises UsageError, in one sentence.
"""
