"""The preflight of three hosts with a Kubernetes node's rules, beside the same hosts without any: ``scripts/bench rules``.

kube-proxy's chains with a network plugin's policies as iptables-save prints them; kube-proxy's nftables mode, with its
verdict maps; and a policy by ipset. Each also with a rule that drops the ephemeral ports from other hosts.
"""

from __future__ import annotations

import os
import sys

from tests.bench.timing import median, own_group
from tests.lab.cluster import Lab
from tests.lab.host import LabHost

LINES = (2500, 25000)
TIMES = 3
CHECK = ["nccl-doctor", "check", "hosts.yaml", "--no-smoke", "-q"]
PER_SERVICE = 9  # lines of iptables-save


def iptables(lines: int) -> tuple[list[str], str]:
    """The command and the text of kube-proxy's iptables mode: a service has a chain, and so has its endpoint."""
    nat, policy = [], []
    chains = ["KUBE-SERVICES", "KUBE-MARK-MASQ"]
    for number in range(lines // PER_SERVICE):
        address, pod, name = (
            f"10.96.{number // 250}.{number % 250 + 1}",
            f"10.244.1.{number % 250 + 1}",
            f"{number:016X}",
        )
        said = f'-m comment --comment "ns/svc{number}:http cluster IP"'
        chains += [f"KUBE-SVC-{name}", f"KUBE-SEP-{name}"]
        nat += [
            f"-A KUBE-SERVICES -d {address}/32 -p tcp {said} -m tcp --dport 80 -j KUBE-SVC-{name}",
            f"-A KUBE-SVC-{name} ! -s 10.244.0.0/16 -d {address}/32 -p tcp {said} -m tcp --dport 80 -j KUBE-MARK-MASQ",
            f"-A KUBE-SVC-{name} {said} -j KUBE-SEP-{name}",
            f"-A KUBE-SEP-{name} -s {pod}/32 {said} -j KUBE-MARK-MASQ",
            f"-A KUBE-SEP-{name} -p tcp {said} -m tcp -j DNAT --to-destination {pod}:8080",
        ]
        policy += [
            f"-A POLICY -s 10.{100 + side}.{number // 250 % 250}.{number % 250 + 1}/32 -p tcp -m tcp --dport {1000 + side} -j DROP"
            for side in range(2)
        ]
    hooks = [f"-A {hook} -j KUBE-SERVICES" for hook in ("PREROUTING", "OUTPUT")]
    marked = "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"
    tables = ["*nat", *(f":{one} - [0:0]" for one in chains), *hooks, marked, *nat, "COMMIT"]
    tables += ["*filter", ":POLICY - [0:0]", "-A INPUT -j POLICY", *policy, "COMMIT"]
    return ["iptables-nft-restore"], "\n".join(tables) + "\n"


def nftables(lines: int) -> tuple[list[str], str]:
    """The command and the text of kube-proxy's nftables mode: maps of services, chains for each, and its own filters."""
    chains, services = [], []
    for number in range(lines // PER_SERVICE):
        address, pod = f"10.96.{number // 250}.{number % 250 + 1}", f"10.244.1.{number % 250 + 1}"
        services.append(f"{address} . tcp . 80 : goto service-{number}")
        chains += [
            f"chain endpoint-{number} {{\n ip saddr {pod} jump mark-for-masquerade\n meta l4proto tcp dnat to {pod}:8080\n}}",
            f"chain service-{number} {{\n ip daddr {address} tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade",
            f" numgen random mod 1 vmap {{ 0 : goto endpoint-{number} }}\n}}",
        ]
    kind = "type ipv4_addr . inet_proto . inet_service : verdict;"
    hooks = {
        "filter-prerouting-pre-dnat": ("filter hook prerouting priority -110", "firewall-check"),
        "filter-input": ("filter hook input priority 0", "service-endpoints-check"),
        "filter-output": ("filter hook output priority 0", "service-endpoints-check"),
        "filter-output-post-dnat": ("filter hook output priority -90", "cluster-ips-check"),
        "nat-prerouting": ("nat hook prerouting priority -100", "services"),
        "nat-output": ("nat hook output priority -100", "services"),
    }
    table = [
        "chain mark-for-masquerade { meta mark set meta mark or 0x4000; }",
        "chain reject-chain { reject; }",
        *chains,
        f"map service-ips {{ {kind} elements = {{ {', '.join(services)} }} }}",
        f"map no-endpoint-services {{ {kind} elements = {{ 10.97.0.1 . tcp . 80 : goto reject-chain }} }}",
        f"map firewall-ips {{ {kind} }}",
        "set cluster-ips { type ipv4_addr; }",
        "chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }",
        "chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }",
        "chain cluster-ips-check { ip daddr @cluster-ips reject; }",
        "chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }",
        *(f"chain {name} {{ type {hook}; ct state new jump {to}; }}" for name, (hook, to) in hooks.items()),
    ]
    return ["nft", "-f", "-"], "table ip kube-proxy {\n" + "\n".join(table) + "\n}\n"


def ipset(lines: int) -> tuple[list[str], str]:
    """The command and the text of a policy by sets, each with ten members."""
    sets, rules = [], []
    for number in range(lines // 11):
        sets.append(f"create pods-{number} hash:ip")
        sets += [f"add pods-{number} 10.{100 + number // 250}.{number % 250}.{member}" for member in range(1, 11)]
        rules.append(f"iptables-nft -A INPUT -p tcp -m set --match-set pods-{number} src -j DROP")
    load = "\n".join(["ipset restore <<'X'", *sets, "X", *rules[:200]])
    return ["sh", "-s"], load + "\n"


KINDS = {"iptables": iptables, "nftables": nftables, "ipset": ipset}
DROP = "iptables-nft -A INPUT -p tcp --dport 32768:60999 -j DROP"


def load(host: LabHost, kind: str, lines: int, *, drops: bool) -> None:
    if lines:
        command, text = KINDS[kind](lines)
        host.run(command, input=text)
    if drops:
        host.run(DROP)


def main() -> None:
    """Prints one line for each kind of rules and number of lines."""
    own_group()
    for kind in sys.argv[1:] or KINDS:
        for drops in (False, True):
            alone = 0.0
            for lines in (0, *LINES):
                with Lab.up(3) as lab:
                    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
                    for host in lab.hosts:
                        load(host, kind, lines, drops=drops and host is lab.hosts[0])
                    found = median(lab.controller, CHECK, TIMES)
                alone = alone or found.seconds
                print(
                    f"{kind:9}{' with a drop' if drops else '':12} {lines:6} lines: {found.seconds:.2f} s, "
                    f"ratio {found.seconds / alone:.2f} (at most {4 if drops else 2}.0); "
                    f"controller {found.cpu_s:.2f} s of CPU, hosts {found.hosts_s:.2f} s; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
