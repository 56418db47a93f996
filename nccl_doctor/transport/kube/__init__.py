"""Hosts that are pods: kubectl exec."""
