"""Diagnoses of environment variables."""
