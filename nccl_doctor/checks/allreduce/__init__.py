"""Diagnoses of the all-reduce."""
