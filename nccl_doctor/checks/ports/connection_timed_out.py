"""Connections to another host get no answer.

What it means: Something drops the packets without a word: a firewall's DROP, a cloud's security group, or a route
into a net where nobody answers.

How we know: NCCL's "Connect to … failed : Connection timed out" or "exceeded timeouts", torch's errno 110, gloo's
"timed out connecting". Each attempt takes about two minutes (net.ipv4.tcp_syn_retries).

Fix: Open the ephemeral range between the cluster's hosts, in the hosts' firewalls and in the cloud's rules; set
NCCL_SOCKET_IFNAME where the address is of the wrong net. `nccl-doctor check` tells the two apart.

References: NCCL's src/misc/socket.cc; torch/csrc/distributed/c10d/socket.cpp; tcp(7) on tcp_syn_retries.
"""

from __future__ import annotations

from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD312", job_wide=False, errors=("ETIMEDOUT",))
