"""Diagnoses about access to the hosts."""
