"""Pure models of what the kernel does with a packet under given rules.

Captured text becomes rules (``nft_*``, ``iptables_*``, ``ipset``; together: ``ruleset``), a packet walks through them
(``walk``), a connection through those of two hosts (``connection``), and failed dials find their rule (``blame``), its
manager (``manager``), its words (``describe``) and the way past it (``remedy``).
"""
