"""Implements this host's part of the port mesh."""
