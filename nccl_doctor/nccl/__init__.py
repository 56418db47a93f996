"""Pure models of NCCL's behaviour, by version."""
