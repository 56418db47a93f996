"""Implements ``fix-port``, which finds the process that holds a port and frees the port."""
