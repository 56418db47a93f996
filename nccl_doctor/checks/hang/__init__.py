"""What a look at a running job shows: `nccl-doctor hang`."""
