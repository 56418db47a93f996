"""Ways there: jump hosts, other ports, other addresses, and what the two ends agree on."""

from __future__ import annotations

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import READY, Make, Row
from tests.lab.odd.sshd import configure, sshd
from tests.lab.odd.users import AS_ALICE, configured, runs

DEAD = "10.77.0.240"
JUMP = "node1"


def way(*lines: str, shut: bool = True, sshd_lines: tuple[str, ...] = ()) -> Make:
    """What ~/.ssh/config says of the host: {name}, {address}, {last}; `shut`, the direct way refuses."""

    def make(lab: Lab, host: LabHost) -> None:
        if sshd_lines:
            configure(host, *sshd_lines)
        if shut:
            host.run(f"iptables -I INPUT -p tcp --dport 22 -s {lab.controller.address} -j REJECT")
        holes = {"name": host.name, "address": host.address, "last": lab.hosts[-1].name}
        configured(host, lab.controller, *(line.format(**holes) for line in lines))

    return make


def then(*makes: Make) -> Make:
    """One after the other."""

    def make(lab: Lab, host: LabHost) -> None:
        for one in makes:
            one(lab, host)

    return make


def known_as(text: str) -> Make:
    """What the controller's /etc/hosts says of the host in place of its address; nobody else's changes."""

    def make(lab: Lab, host: LabHost) -> None:
        new = text.format(name=host.name, address=host.address)
        edit = f"sed '/ {host.name}$/d' /etc/hosts >/tmp/hosts; printf '%b' '{new}' >>/tmp/hosts; cat /tmp/hosts >/etc/hosts"
        lab.controller.run(["flock", "/run/lock-hosts", "sh", "-c", edit])

    return make


def ipv6(lab: Lab, host: LabHost) -> None:
    """ssh goes to a literal of IPv6."""
    number = host.address.rpartition(".")[2]
    host.run(f"ip -6 address add fd00::{number}/64 dev eth0 nodad")
    lab.controller.run("ip -6 address replace fd00::ffff/64 dev eth0 nodad")
    way(f"HostName fd00::{number}", "HostKeyAlias {name}")(lab, host)


def natted(lab: Lab, host: LabHost) -> None:
    """Behind the first host's address, at a port of its own there."""
    gateway, port = lab.hosts[0], 2200 + int(host.address.rpartition(".")[2])
    gateway.run("echo 1 >/proc/sys/net/ipv4/ip_forward")
    gateway.run(f"iptables -t nat -A PREROUTING -p tcp --dport {port} -j DNAT --to-destination {host.address}:22")
    gateway.run(f"iptables -t nat -A POSTROUTING -p tcp -d {host.address} --dport 22 -j MASQUERADE")
    way(f"HostName {gateway.name}", f"Port {port}", "HostKeyAlias {name}")(lab, host)


def shared(lab: Lab, host: LabHost) -> None:
    """A connection that was opened before the host took our key away, as after a second factor."""
    way("ControlPath /root/.ssh/cm-%C", shut=False)(lab, host)
    master = f"ssh -fN -o ControlMaster=yes {host.name} >/dev/null 2>&1 </dev/null"
    lab.controller.run(f"{master} || {{ sleep 2; {master}; }}", timeout=60)  # a busy sshd drops the first attempt
    host.write("/root/.ssh/authorized_keys", "", 0o600)


def forbidding(lab: Lab, host: LabHost) -> None:
    """Behind the last host, which forwards nothing."""
    configure(lab.hosts[-1], "AllowTcpForwarding no")
    way("ProxyJump {last}")(lab, host)


ROWS = (
    Row("ProxyJump", READY, way(f"ProxyJump {JUMP}")),
    Row("ProxyJump by a user of its own", READY, way(f"ProxyJump alice@{JUMP}:22")),
    Row("a jump behind a jump", READY, way(f"ProxyJump {JUMP},alice@10.77.0.2")),
    Row("ProxyCommand ssh -W", READY, way(f"ProxyCommand ssh -W %h:%p {JUMP}")),
    Row("ProxyCommand nc", READY, way("ProxyCommand nc {address} %p", shut=False)),
    Row("another port, by the hosts file", READY, sshd("Port 2222"), entry={"ssh": {"port": 2222}}),
    Row("another port, by ~/.ssh/config", READY, way("Port 2222", shut=False, sshd_lines=("Port 2222",))),
    Row("ControlMaster auto", READY, way("ControlMaster auto", "ControlPath /root/.ssh/auto-%C", "ControlPersist 5", shut=False)),
    Row("a connection that stands, and no key any more", READY, shared),
    Row("a literal of IPv6", READY, ipv6),
    Row("a name with two addresses, the first of them dead", READY, known_as(DEAD + " {name}\\n{address} {name}\\n")),
    Row("a name with two addresses, the second of them dead", READY, known_as("{address} {name}\\n" + DEAD + " {name}\\n")),
    Row("a name that only the jump host knows", READY, then(known_as(""), way(f"ProxyJump {JUMP}"))),
    Row("one address for many, with a port for each", READY, natted),
    Row("Kerberos in the configuration, and no ticket", READY, way("GSSAPIAuthentication yes", "GSSAPIDelegateCredentials yes", shut=False)),
    Row("X11 and agent forwarding in the configuration", READY, way("ForwardX11 yes", "ForwardAgent yes", "LocalForward 2049 localhost:9", shut=False)),
    Row("a server with a key exchange that paramiko lacks", READY, sshd("KexAlgorithms sntrup761x25519-sha512@openssh.com")),
    Row("a server with a cipher that paramiko lacks", READY, sshd("Ciphers chacha20-poly1305@openssh.com")),
    Row("MaxStartups 1", READY, sshd("MaxStartups 1"), entry=AS_ALICE),
    Row(
        "a jump host that forbids forwarding",
        ("ssh-unreachable", "the jump host forbids TCP forwarding", "AllowTcpForwarding yes"),
        forbidding,
        (255, "administratively prohibited"),
    ),
    Row("a jump host that is none", ("ssh-unreachable", "The jump host nosuch", "does not resolve"), way("ProxyJump nosuch"), (255, "nosuch")),
    Row("a name that the jump host does not know either", ("ssh-unreachable", "does not resolve on its jump host"),
        way("HostName nosuch.example", f"ProxyJump {JUMP}"), (255, "")),
    Row("a jump host that refuses", ("ssh-unreachable", f"The jump host {JUMP} ({JUMP}:9)", "refused the TCP connection"),
        way(f"ProxyJump {JUMP}:9"), (255, "Connection refused")),
    Row("a jump host that bars the user", ("ssh-auth-failed", f"The jump host {JUMP}", "refused the login of user nobody"),
        way(f"ProxyJump nobody@{JUMP}"), (255, "Permission denied")),
    Row("the host refuses behind its jump host", ("ssh-unreachable", "refused the TCP connection"),
        then(sshd("Port 2222"), way(f"ProxyJump {JUMP}")), (255, "Connection refused")),
    Row("a port where nobody listens", ("ssh-unreachable", "refused the TCP connection", "no sshd is listening on the SSH port"),
        runs(), (255, "Connection refused"), {"ssh": {"port": 2299}}),
    Row("a host that rejects us", ("ssh-unreachable", "refused the TCP connection"), way(), (255, "Connection refused")),
)  # fmt: skip
