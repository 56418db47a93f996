"""Models of NCCL's behaviour in each version, as pure functions."""
