"""fix-port: who holds a port, and how it is freed."""
