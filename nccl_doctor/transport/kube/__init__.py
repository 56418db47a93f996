"""Pods, entered with kubectl exec, with the user's own configuration and permissions."""
