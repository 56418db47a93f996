"""Connects to all hosts and runs a probe on each host."""
