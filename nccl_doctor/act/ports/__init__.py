"""Implements ``fix-port``, which finds the process that is using a port and frees the port."""
