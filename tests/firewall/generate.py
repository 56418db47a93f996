"""Random rule sets for nftables and iptables, of the kinds that people write, and the connections to try on them."""

from __future__ import annotations

import random
from dataclasses import dataclass

PORTS = [22, 1500, 29500, 33000, 45000]
V4 = {"a": ["10.9.0.1", "10.9.0.11"], "b": ["10.9.0.2", "10.9.0.12"]}
V6 = {"a": ["fd09::1"], "b": ["fd09::2"]}
NFT_REJECTS = {
    "inet": [f"reject with icmpx {code}" for code in (
        "admin-prohibited", "host-unreachable", "no-route", "port-unreachable"
    )],
    "ip": [f"reject with icmp {code}" for code in (
        "host-prohibited", "net-prohibited", "host-unreachable", "net-unreachable", "admin-prohibited",
        "port-unreachable", "prot-unreachable",
    )],
    "ip6": [f"reject with icmpv6 {code}" for code in (
        "no-route", "admin-prohibited", "addr-unreachable", "port-unreachable", "policy-fail", "reject-route"
    )],
}  # fmt: skip
IPTABLES_REJECTS = [
    "tcp-reset", "icmp-host-prohibited", "icmp-net-prohibited", "icmp-host-unreachable", "icmp-net-unreachable",
    "icmp-admin-prohibited", "icmp-port-unreachable", "icmp-proto-unreachable",
]  # fmt: skip

Flow = tuple[str, str, int]


@dataclass(frozen=True)
class Case:
    """Scripts for bash that set up the rules of each box, and what to dial."""

    a: str
    b: str
    flows: list[Flow]
    within_b: list[Flow]


def case(seed: int) -> Case:
    """The same for the same seed."""
    rng = random.Random(seed)
    make = rng.choice([_nft, _nft, _nft, _iptables, _iptables, _both])
    addresses = [(source, target) for ends in (V4, V6) for source in ends["a"] for target in ends["b"]]
    flows = [(*pair, port) for pair in addresses for port in rng.sample(PORTS, 2)]
    own = [("127.0.0.1", "127.0.0.1", rng.choice(PORTS)), ("10.9.0.2", "10.9.0.12", rng.choice(PORTS))]
    dialler = make(rng) if rng.random() < 0.35 else ""
    return Case(dialler, make(rng), flows, own)


def _both(rng: random.Random) -> str:
    return _iptables(rng) + "\n" + _nft(rng)


# --- nftables -------------------------------------------------------------------------------------------------------


def _nft(rng: random.Random) -> str:
    tables = "\n".join(_nft_table(rng, f"t{number}") for number in range(rng.choice([1, 1, 2])))
    return f"nft -f - <<'END'\n{tables}\nEND"


def _nft_table(rng: random.Random, name: str) -> str:
    family = rng.choice(["inet", "inet", "ip", "ip6"])
    hook = rng.choice(["input", "input", "input", "prerouting", "output", "postrouting"])
    priority = rng.choice([-310, -150, -5, 0, 0, 10, 300])
    policy = rng.choice(["accept", "accept", "drop"])
    address = "ipv6_addr" if family == "ip6" else "ipv4_addr"
    words = _Words(rng, family, hook)
    helpers = ["h0", "h1"]
    rules = {
        "h0": [words.rule(["return"]) for _ in range(rng.randint(1, 3))],
        "h1": [words.rule(["jump h0", "goto h0", "return"]) for _ in range(rng.randint(1, 3))],
        "base": [words.rule([f"{verb} {chain}" for chain in helpers for verb in ("jump", "goto")] + ["return"])
                 for _ in range(rng.randint(2, 7))],
    }  # fmt: skip
    if rng.random() < 0.6:
        at = rng.randint(0, 1)
        rules["base"].insert(at, rng.choice(["ct state established,related accept",
                                             "ct state vmap { established : accept, related : accept, invalid : drop }",
                                             "ct state { established, related } accept"]))  # fmt: skip
    if rng.random() < 0.4:
        rules["base"].insert(0, rng.choice(['iifname "lo" accept', "iif lo accept"]))
    if priority < -200:
        rules = {chain: [rule for rule in entries if "ct state" not in rule] for chain, entries in rules.items()}
    nets = words.elements(3)
    ports = ", ".join(words.ports(3))
    parts = [
        f"set nets {{ type {address}; flags interval; auto-merge; elements = {{ {nets} }}; }}",
        f"set ports {{ type inet_service; flags interval; auto-merge; elements = {{ {ports} }}; }}",
        f"set pairs {{ type {address} . inet_service; flags interval; elements = {{ {words.pairs()} }}; }}",
        f"map verdicts {{ type inet_service : verdict; flags interval; elements = {{ {words.verdicts()} }}; }}",
        *(f"chain {chain} {{\n" + "\n".join(rules[chain]) + "\n}" for chain in helpers),
        f"chain base {{ type filter hook {hook} priority {priority}; policy {policy};\n"
        + "\n".join(rules["base"])
        + "\n}",
    ]
    return f"table {family} {name} {{\n" + "\n".join(parts) + "\n}"


@dataclass
class _Words:
    rng: random.Random
    family: str
    hook: str

    @property
    def ip(self) -> str:
        return "ip6" if self.family == "ip6" else "ip"

    def address(self) -> str:
        pick = V6 if self.family == "ip6" else V4
        return self.rng.choice(pick["a"] + pick["b"])

    def net(self) -> str:
        if self.family == "ip6":
            return self.rng.choice(["fd09::/64", "fd00::/8", "fe80::/10", "::/0", "fd09::1-fd09::5", "fd09::2"])
        return self.rng.choice(
            ["10.9.0.0/24", "10.0.0.0/8", "192.168.0.0/16", "10.9.0.8/29", "10.9.0.0-10.9.0.5", "10.9.0.11", "10.9.0.1"]
        )

    def elements(self, count: int) -> str:
        if self.family == "ip6":
            return self.rng.choice(["fd09::1, fe80::/10", "fd00::/8", "fd09::2-fd09::9, 2001:db8::/32"])
        return ", ".join(self.rng.sample(["10.9.0.1", "10.9.0.8/29", "192.168.0.0/16", "172.16.0.0-172.16.0.9"], count))

    def ports(self, count: int) -> list[str]:
        return self.rng.sample(["22", "1024-2000", "29500", "32768-40000", "45000", "80", "30000-30010"], count)

    def pairs(self) -> str:
        one, two = ("fd09::1", "fd00::/8") if self.family == "ip6" else ("10.9.0.1", "10.9.0.8/29")
        first, second = self.ports(2)
        return f"{one} . {first}, {two} . {second}"

    def verdicts(self) -> str:
        choice = ["accept", "drop", "jump h0", "goto h0", "return"]
        return ", ".join(f"{port} : {self.rng.choice(choice)}" for port in self.ports(3))

    def match(self) -> str:
        rng, ip = self.rng, self.ip
        port, other = self.ports(2)
        if self.family == "inet" and rng.random() < 0.05:
            return rng.choice(["meta nfproto ipv4", "meta nfproto ipv6"])
        way = rng.choice(["==", "!="])
        end = rng.choice(["saddr", "daddr"])
        return rng.choice([
            f"tcp dport {port}", f"tcp dport != {port}", f"tcp dport {{ {port}, {other} }}", "tcp dport @ports",
            f"tcp dport {rng.choice(['<', '>', '<=', '>='])} {rng.choice([1024, 29500, 32768])}", "tcp dport != @ports",
            f"meta l4proto tcp th dport {port}", "meta l4proto { tcp, udp }", "meta l4proto udp", f"udp dport {port}",
            f"tcp sport {rng.choice(['1024-65535', '1-1023', '!= 22'])}",
            f"{ip} {end} {way} {self.net()}", f"{ip} {end} {{ {self.address()}, {self.address()} }}",
            f"{ip} {end} {way} @nets", f"{ip} {end} . tcp dport @pairs",
            f"{ip} saddr {self.address()} tcp dport {port}", f"{ip} {end} {self.net()} tcp dport {{ {port}, {other} }}",
            "ct state new", "ct state established,related", "ct state != new", "ct state { new, untracked }",
            "ct state new tcp dport " + port, "ct direction original",
            'iifname "eno1"', 'iifname "en*"', 'oifname "eno1"', 'iifname != "lo"', 'iifname { "lo", "eno2" }',
            "iifgroup 0", "meta mark != 0x3", f"fib {end} type local", "meta mark 0x1",
            "meta mark & 0xff != 0x2", "tcp flags & (fin|syn|rst|ack) == syn", "tcp flags syn / fin,syn,rst,ack",
            "tcp flags ack", "tcp flags ! ack", "pkttype host", "ct status dnat",
            "ip ttl " + rng.choice(["< 65", "> 64", "63-64", "!= 64"]) if ip == "ip" else "meta l4proto tcp",
            f"{ip} saddr . {ip} daddr {{ {self.address()} . {self.address()} }}",
            f"iifname . tcp dport {{ eno1 . {port} }}",
            "icmp type echo-request" if ip == "ip" else "meta l4proto icmpv6",
        ])  # fmt: skip

    def rule(self, further: list[str]) -> str:
        rng = self.rng
        if rng.random() < 0.08:
            return "meta mark set " + rng.choice(["0x1", "0x2", "mark or 0x3"])
        if rng.random() < 0.1:
            return rng.choice([
                "tcp dport vmap @verdicts" if "jump h1" in further else "tcp dport 22 accept",  # the kernel sees loops
                f"tcp dport vmap {{ {rng.choice(['22', '1-2000'])} : drop, 29500 : accept, * : continue }}",
                f"{self.ip} saddr vmap {{ {self.address()} : accept }}",
            ])  # fmt: skip
        rejects = ["reject", "reject with tcp reset", *NFT_REJECTS[self.family]]
        if self.hook == "postrouting":  # the kernel has no reject there
            rejects = ["drop"]
        ends = ["accept", "accept", "drop", rng.choice(rejects), rng.choice(further), 'log prefix "x"', "counter"]
        tests = [self.match() for _ in range(rng.choice([1, 1, 2]))]
        # nft refuses contradictions.
        others = [test for test in tests if any(word in test for word in ("udp", "icmp", "nfproto"))]
        end = rng.choice(ends)
        if others:
            tests, end = others[:1], rng.choice(["accept", "drop"])
        odd = " limit rate 1000/second" if rng.random() < 0.01 else ""
        noise = rng.choice(["", " counter", ' log prefix "a"'])
        comment = rng.choice(["", "", ' comment "$(reboot); drop"'])
        return f"{' '.join(tests)}{odd}{noise} {end}{comment}"


# --- iptables -------------------------------------------------------------------------------------------------------


IPSETS = """
create nets hash:net
add nets 10.9.0.8/29
add nets 10.9.0.0/30
add nets 10.9.0.2 nomatch
create pairs hash:ip,port
add pairs 10.9.0.1,tcp:29500
add pairs 10.9.0.11,tcp:22
create ports bitmap:port range 0-65535
add ports 22
add ports 45000
create wires hash:net,iface
add wires 10.9.0.0/28,eno1
create lists list:set
add lists nets
"""


def _iptables(rng: random.Random) -> str:
    backend = rng.choice(["legacy", "nft"])
    table, chain = rng.choice(
        [("filter", "INPUT")] * 6
        + [("filter", "OUTPUT"), ("mangle", "PREROUTING"), ("raw", "PREROUTING"), ("mangle", "POSTROUTING")]
    )
    lines = [f"*{table}", f":{chain} {rng.choice(['ACCEPT', 'ACCEPT', 'DROP'])} [0:0]", ":U0 - [0:0]", ":U1 - [0:0]"]
    if rng.random() < 0.6 and table != "raw":
        lines.append(f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
    if rng.random() < 0.3 and chain == "INPUT":
        lines.append(f"-A {chain} -i lo -j ACCEPT")
    for target, further in (("U0", ["RETURN"]), ("U1", ["U0", "RETURN"]), (chain, ["U0", "U1", "RETURN"])):
        lines += [f"-A {target} {_iptables_rule(rng, table, chain, further)}" for _ in range(rng.randint(1, 6))]
    rules = "\n".join([*lines, "COMMIT"])
    return f"ipset restore <<'END'\n{IPSETS}END\niptables-{backend}-restore <<'END'\n{rules}\nEND"


def _iptables_rule(rng: random.Random, table: str, chain: str, further: list[str]) -> str:
    if table == "mangle" and rng.random() < 0.2:
        return "-j MARK --set-mark " + rng.choice(["0x1", "0x2/0xf"])
    ends = ["-j ACCEPT", "-j ACCEPT", "-j DROP", '-j LOG --log-prefix "-j ACCEPT "', "-j NFLOG"]
    ends += [f"{rng.choice(['-j', '-g'])} {name}" if name != "RETURN" else "-j RETURN" for name in further]
    rejecting = table == "filter"
    tcp = False
    if rejecting and rng.random() < 0.3:
        how = rng.choice(IPTABLES_REJECTS)
        ends, tcp = [f"-j REJECT --reject-with {how}"], True
    picked = [_iptables_match(rng, table, chain) for _ in range(rng.choice([1, 1, 2]))]
    alike = len({_kind(test) for test in picked}) < len(picked)  # iptables takes most options once only
    tests = " ".join(picked[:1] if alike else picked)
    if tcp and "-p " not in tests:
        tests = "-p tcp " + tests
    odd = " -m limit --limit 1000/s" if rng.random() < 0.015 else ""
    comment = rng.choice(["", """ -m comment --comment "-j ACCEPT\\"; $(reboot)\""""])
    return f"{_one_protocol(tests)}{odd}{comment} {rng.choice(ends)}"


def _kind(test: str) -> str:
    return next(word for word in test.split() if word.startswith("-") and word not in {"-p", "-m"})[:4]


def _one_protocol(tests: str) -> str:
    """``-p tcp`` may stand only once."""
    if tests.count("-p tcp") < 2:
        return tests
    return "-p tcp " + tests.replace("-p tcp ", "")


def _iptables_match(rng: random.Random, table: str, chain: str) -> str:
    port = rng.choice(["22", "1024:2000", "29500", "32768:40000", "45000", ":1023", "30000:"])
    no = rng.choice(["", "! "])
    end = rng.choice(["src", "dst"])
    choice = [
        f"-p tcp -m tcp {no}--dport {port}",
        f"-p tcp -m multiport {no}--dports 22,{rng.choice(['29500', '32768:40000'])}",
        "-p tcp -m multiport --ports 29500,1:100", f"-p tcp {no}--syn", "-p tcp -m tcp --sport 1024:",
        f"{no}-{rng.choice('sd')} {rng.choice(['10.9.0.1', '10.9.0.0/24', '10.9.0.8/29', '10.9.0.2'])}",
        f"-m iprange {no}--{end}-range 10.9.0.1-10.9.0.5", f"-m addrtype {no}--{end}-type LOCAL",
        f"-m set {no}--match-set nets {end}", f"-m set {no}--match-set pairs src,dst",
        f"-m set {no}--match-set ports dst", "-m set --match-set wires src,src", f"-m set --match-set lists {end}",
        f"-m mark {no}--mark 0x1", f"-m mark {no}--mark 0x2/0xf", "-m pkttype --pkt-type unicast", "-m ttl --ttl-lt 65", "-m ttl --ttl-gt 64",
    ]  # fmt: skip
    if table != "raw":
        choice += [f"-m conntrack {no}--ctstate NEW", "-m state --state NEW,ESTABLISHED",
                   "-m conntrack --ctdir ORIGINAL", "-p tcp -m conntrack --ctstate NEW --ctproto 6"]  # fmt: skip
    if chain in {"INPUT", "PREROUTING"}:
        choice += [f"{no}-i eno1", f"{no}-i en+", "-i lo", "-m devgroup --src-group 0x0"]
    else:
        choice += [f"{no}-o eno1", "-o lo"]
    return rng.choice(choice)
