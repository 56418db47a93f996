"""Diagnoses of interfaces and names."""
