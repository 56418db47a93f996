"""Diagnoses of a running job: `nccl-doctor hang`."""
