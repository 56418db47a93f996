"""fix-port on one host."""
