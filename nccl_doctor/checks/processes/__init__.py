"""Diagnoses of faults in processes and limits."""
