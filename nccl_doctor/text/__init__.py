"""Helpers for host lists, addresses, shell lines, secrets and files, none of which depend on clusters."""
