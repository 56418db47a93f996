"""Models how the kernel treats a packet under given firewall rules.

The ``nft`` and ``iptables`` modules parse captured rule sets into the classes of the ``rules`` module, which evaluates
the rules for one packet. The ``connection`` module evaluates the rules of two hosts for a TCP handshake. For failed
connections, the ``blame`` module finds the blocking rule, the ``manager`` module finds the program that manages this
rule, and the ``remedy`` module returns the commands that let the traffic through. The ``route_lookup`` module finds
connections that failed because of the hosts' routes or reverse-path filters.
"""
