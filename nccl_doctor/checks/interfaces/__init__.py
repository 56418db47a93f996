"""Diagnoses of network interfaces and host names."""
