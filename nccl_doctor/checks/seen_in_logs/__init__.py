"""Diagnoses of what only logs show."""
