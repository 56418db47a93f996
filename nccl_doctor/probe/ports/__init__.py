"""Handles fix-port's requests on this host."""
