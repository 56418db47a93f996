"""Diagnoses of faults that involve ports and firewalls."""
