"""Pods, entered by kubectl exec with the user's own configuration and permissions."""
