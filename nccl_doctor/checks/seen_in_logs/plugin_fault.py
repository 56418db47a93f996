"""NCCL's network plugin failed.

What it means: A plugin (aws-ofi-nccl, FasTrak, UCX, SHARP …) could not be loaded, found no device or lost a
connection. NCCL may go on over sockets, many times slower.

How we know: Warnings that begin with "NET/OFI" or another plugin's name, "Failed to initialize any NET plugin",
"network … not found". That no plugin is found at all is normal and no fault.

Fix: See that the devices are in the container (/dev/infiniband), that fi_info -p efa lists them, that the security
group lets members talk to each other, and that the plugin fits this NCCL.

References: NCCL's src/plugin/net.cc; aws-ofi-nccl.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD912", explains=("cuda-error", "ib-fault"))
