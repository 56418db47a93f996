"""Models of how the kernel treats a packet under given firewall rules; pure functions.

``nft`` and ``iptables`` parse captured text into the classes of ``rules``, which evaluates the rules for one packet.
``connection`` evaluates the rules of two hosts for a TCP handshake. For failed connections, ``blame`` finds the
blocking rule, ``manager`` the program that manages this rule, and ``remedy`` the commands that open it.
``route_lookup`` compares failed connections with the kernels' routes.
"""
