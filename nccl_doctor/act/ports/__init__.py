"""fix-port: finds who holds a port, and frees it."""
