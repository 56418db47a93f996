"""Diagnoses of failures to access hosts."""
