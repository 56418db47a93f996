"""Firewalls on a host, of each kind that manages one."""

from tests.lab.cluster import Lab
from tests.lab.faults.catalogue import MASTER_PORT, register
from tests.lab.host import LabHost
from tests.lab.requirements import find_tool

# What an administrator lets in before closing the rest: answers, the host itself, ping, SSH.
_USUAL = (
    "ct state established,related accept; iif lo accept; meta l4proto { icmp, ipv6-icmp } accept; tcp dport 22 accept;"
)


def _nft(host: LabHost, chain: str) -> None:
    host.run(["nft", "-f", "-"], input=f"table inet filter {{\nchain {chain}\n}}\n")


@register("nftables-drop-port")
def drop_port(lab: Lab, host: LabHost) -> None:
    """nftables drops what comes to the master port, and lets in all else."""
    _nft(host, f"input {{ type filter hook input priority 0; policy accept; tcp dport {MASTER_PORT} drop; }}")


@register("nftables-policy-drop")
def drop_policy(lab: Lab, host: LabHost) -> None:
    """nftables lets in SSH and ping; its policy drops all else."""
    _nft(host, f"input {{ type filter hook input priority 0; policy drop; {_USUAL} }}")


@register("nftables-drop-ephemeral")
def drop_ephemeral(lab: Lab, host: LabHost) -> None:
    """nftables lets in SSH, ping and the master port; the ports that NCCL draws are dropped."""
    _nft(host, f"input {{ type filter hook input priority 0; policy drop; {_USUAL} tcp dport {MASTER_PORT} accept; }}")


@register("nftables-output-drop")
def drop_output(lab: Lab, host: LabHost) -> None:
    """nftables on the sender drops what goes out to anybody's master port."""
    _nft(host, f"output {{ type filter hook output priority 0; policy accept; tcp dport {MASTER_PORT} drop; }}")


@register("iptables-reject")
def reject_by_iptables(lab: Lab, host: LabHost) -> None:
    """iptables as RHEL 6 shipped it: SSH and ping get in, the rest is answered with icmp-host-prohibited."""
    find_tool("iptables")
    for rule in (
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-p icmp -j ACCEPT",
        "-i lo -j ACCEPT",
        "-p tcp --dport 22 -j ACCEPT",
        "-j REJECT --reject-with icmp-host-prohibited",
    ):
        host.run(["iptables", "-w", "-A", "INPUT", *rule.split()])


@register("iptables-drop-port")
def drop_by_iptables(lab: Lab, host: LabHost) -> None:
    """iptables drops what comes to the master port, in a chain of its own."""
    find_tool("iptables")
    host.run(["iptables", "-w", "-N", "HARDENING"])
    host.run(["iptables", "-w", "-A", "HARDENING", "-p", "tcp", "--dport", str(MASTER_PORT), "-j", "DROP"])
    host.run(["iptables", "-w", "-I", "INPUT", "-j", "HARDENING"])


@register("ufw-deny")
def enable_ufw(lab: Lab, host: LabHost) -> None:
    """ufw as people enable it: SSH allowed, its default denies the rest."""
    find_tool("ufw")
    host.run(["ufw", "allow", "22/tcp"])
    host.run(["ufw", "--force", "enable"])


@register("firewalld-public")
def start_firewalld(lab: Lab, host: LabHost) -> None:
    """firewalld as installed: eth0 is in zone public, which has SSH and rejects the rest; one that runs is so again."""
    find_tool("firewall-cmd")
    host.run("mkdir -p /run/dbus /etc/firewalld/zones && rm -rf /etc/firewalld/zones/* /etc/firewalld/direct.xml*")
    host.write("/etc/firewalld/zones/public.xml", _with_eth0(host.read("/usr/lib/firewalld/zones/public.xml")))
    if _firewalld_runs(host):
        host.run(["firewall-cmd", "--reload"])
        return
    host.run([find_tool("dbus-daemon"), "--system", "--fork"])
    host.run([find_tool("firewalld")])
    host.wait_until(lambda: _firewalld_runs(host), "firewalld's start")


@register("firewalld-master-port")
def open_the_master_port(lab: Lab, host: LabHost) -> None:
    """firewalld as installed, with the master port opened in zone public: the half that people remember."""
    start_firewalld(lab, host)
    host.run(["firewall-cmd", "--permanent", "--zone=public", f"--add-port={MASTER_PORT}/tcp"])
    host.run(["firewall-cmd", "--reload"])


def _with_eth0(zone: str) -> str:
    """As ``firewall-cmd --permanent --add-interface=eth0`` leaves the zone's file."""
    return zone.replace("</zone>", '  <interface name="eth0"/>\n</zone>')


def _firewalld_runs(host: LabHost) -> bool:
    """The rules come before its answer; to ask costs a hundred times as much as to look at them."""
    if "table inet firewalld" not in host.run(["nft", "list", "tables"]).stdout:
        return False
    return host.run(["firewall-cmd", "--state"], check=False).stdout.strip() == "running"
