"""Diagnoses of reaching the hosts."""
