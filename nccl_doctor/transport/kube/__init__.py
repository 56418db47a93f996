"""Runs commands in pods through kubectl exec, with the user's own configuration and permissions."""
