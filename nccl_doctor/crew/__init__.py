"""Connections to all hosts, and a probe on each."""
