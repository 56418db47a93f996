"""Diagnoses of a running job, made by `nccl-doctor hang`."""
