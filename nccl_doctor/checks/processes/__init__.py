"""Diagnoses of processes and limits."""
