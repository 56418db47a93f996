"""Models how the kernel treats a packet under given firewall rules.

The modules ``nft`` and ``iptables`` parse captured rule sets into the classes of the module ``rules``, which evaluates
the rules for one packet. The module ``connection`` evaluates the rules of two hosts for a TCP handshake. For failed
connections, ``blame`` finds the rule that blocks them, ``manager`` finds the program that manages this rule, and
``remedy`` returns the commands that let the traffic through. The module ``route_lookup`` finds failed connections that
the routes or reverse-path filters of the hosts explain.
"""
