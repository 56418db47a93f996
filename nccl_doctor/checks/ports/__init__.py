"""Diagnoses of ports and firewalls."""
