"""Diagnoses of faults that only logs show."""
