"""Diagnoses of faults in the all-reduce."""
