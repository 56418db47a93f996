"""Pure models of what NCCL does, by version."""
