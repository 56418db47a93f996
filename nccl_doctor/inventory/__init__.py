"""Where hosts come from: files, patterns, Slurm."""
