"""Pure models of how the kernel treats a packet under given firewall rules.

Captured text is parsed into ``rules`` (by ``nft`` and ``iptables``), which a packet passes one by one; a ``connection``
passes the rules of two hosts. For failed dials, ``blame`` finds the rule, ``manager`` its manager and syntax, and
``remedy`` the commands that open it. ``route_lookup`` compares dials with the kernels' routes.
"""
