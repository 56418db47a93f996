"""Pure models of what the kernel does with a packet under given rules.

Captured text becomes ``rules`` (by ``nft`` and ``iptables``), through which a packet walks; a ``connection`` goes
through those of two hosts, and failed dials find their rule (``blame``), its ``manager`` with its words, and the way
past it (``remedy``). ``route_lookup`` is the kernels' own word on a dial's way.
"""
