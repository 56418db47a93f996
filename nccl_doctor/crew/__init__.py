"""Connects to all hosts, and runs a probe on each of them."""
