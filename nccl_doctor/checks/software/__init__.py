"""Diagnoses of GPUs, software and versions."""
