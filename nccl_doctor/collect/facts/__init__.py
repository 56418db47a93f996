"""Facts of hosts: requested, parsed, and with their names resolved."""
