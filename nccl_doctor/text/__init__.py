"""Helpers for host lists, addresses, shell lines, secrets, and files, without dependencies on clusters."""
