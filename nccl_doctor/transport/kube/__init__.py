"""Pods: kubectl exec, with kubectl's configuration and rights, which are the user's own."""
