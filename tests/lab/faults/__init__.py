"""Named faults, each of which breaks one host of a lab: `fault("sshd-dead")(lab, lab.host("node2"))`."""

from tests.lab.faults import firewall, network, ports, ssh, system
from tests.lab.faults.catalogue import MASTER_PORT, Fault, all_faults, fault

__all__ = ["MASTER_PORT", "Fault", "all_faults", "fault", "firewall", "network", "ports", "ssh", "system"]
