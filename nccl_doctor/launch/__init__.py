"""The lines that start a job, written and read: torchrun, env://, tcp://, Slurm."""
