"""Diagnoses of faults in environment variables and launch commands."""
