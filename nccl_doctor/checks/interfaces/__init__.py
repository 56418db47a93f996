"""Diagnoses of faults in network interfaces, addresses, routes and host names."""
