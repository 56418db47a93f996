"""Everything about a lab that is decided before anything is built: names, addresses, keys and files. Pure data."""

import ipaddress
import sys
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.lab.errors import LabError

CONTROLLER = "ctl"
ALICE = 1000
"""uid and gid of `alice`, the user without privileges on every host."""

MAX_HOSTS = 1000
"""A Linux bridge has 1024 ports (net/bridge/br_private.h, `BR_PORT_BITS`)."""

SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,diffie-hellman-group18-sha512
"""
"""The exchanges of keys that quantum computers can't break take two thirds of what a connection of ``ssh`` takes."""

INTERPRETERS = Path.home() / ".pyenv" / "versions"
"""The other Pythons of this machine, where it has any."""

NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files\nprotocols: files\nservices: files\n"


@dataclass(frozen=True)
class File:
    """A file to write on a host; missing directories above it are made, with the same owner."""

    path: str
    text: str
    mode: int = 0o644
    uid: int = 0


@dataclass(frozen=True)
class HostPlan:
    """One host: its name, its address with prefix length, the gateway, and its own files."""

    name: str
    interface: ipaddress.IPv4Interface
    gateway: ipaddress.IPv4Interface
    files: tuple[File, ...]
    shm_size: str


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 key pair in OpenSSH's formats."""

    private: str
    public: str


def make_key() -> KeyPair:
    """Make a fresh key pair."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    return KeyPair(private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def make_plan(hosts: int, *, shm_size: str = "1g") -> list[HostPlan]:
    """Plan `hosts` hosts and the controller, which comes last.

    Args:
        hosts: how many hosts besides the controller, 1 to `MAX_HOSTS`.
        shm_size: size of each host's /dev/shm, as tmpfs takes it.
    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise LabError(f"A lab has 1 to {MAX_HOSTS} hosts, not {hosts}.")
    network = ipaddress.IPv4Network("10.77.0.0/24" if hosts <= 250 else "10.77.0.0/16")
    addresses = {f"node{number}": network[number] for number in range(1, hosts + 1)}
    addresses[CONTROLLER] = network[-2]
    gateway = ipaddress.IPv4Interface(f"{network[-3]}/{network.prefixlen}")
    keys = {name: make_key() for name in addresses}
    login = make_key()
    names = "".join(f"{address} {name}\n" for name, address in addresses.items())
    known = "".join(f"{name},{address} {keys[name].public}\n" for name, address in addresses.items())
    common = (*_system_files(names), *_login_files(login.public + "\n", "authorized_keys"))
    controller = (*_login_files(login.private, "id_ed25519"), *_login_files(known, "known_hosts"))
    return [
        HostPlan(
            name=name,
            interface=ipaddress.IPv4Interface(f"{address}/{network.prefixlen}"),
            gateway=gateway,
            files=(
                File("/etc/hostname", name + "\n"),
                File("/etc/ssh/ssh_host_ed25519_key", keys[name].private, 0o600),
                *common,
                *(controller if name == CONTROLLER else ()),
            ),
            shm_size=shm_size,
        )
        for name, address in addresses.items()
    ]


def _login_files(text: str, name: str) -> list[File]:
    return [File(f"/root/.ssh/{name}", text, 0o600), File(f"/home/alice/.ssh/{name}", text, 0o600, ALICE)]


def _system_files(names: str) -> list[File]:
    """The files of /etc that must not be this machine's own; its people's accounts give way to alice."""
    system = [line for line in Path("/etc/passwd").read_text().splitlines() if not _is_person(line.split(":")[2])]
    groups = [line for line in Path("/etc/group").read_text().splitlines() if not _is_person(line.split(":")[2])]
    accounts = [*system, f"alice:x:{ALICE}:{ALICE}::/home/alice:/bin/bash"]
    return [
        File("/etc/hosts", f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{names}"),
        File("/etc/resolv.conf", ""),
        File("/etc/nsswitch.conf", NSSWITCH),
        File("/etc/nccl.conf", ""),
        File("/etc/passwd", "\n".join(accounts) + "\n"),
        File("/etc/group", "\n".join([*groups, f"alice:x:{ALICE}:"]) + "\n"),
        # "*" is "no password"; "!" would be "locked", which sshd without PAM refuses for keys too (sshd(8)).
        File("/etc/shadow", "".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in accounts), 0o640),
        File("/etc/ssh/sshd_config", SSHD_CONFIG),
    ]


def _is_person(uid: str) -> bool:
    return 1000 <= int(uid) < 65534


def shared_directories() -> list[str]:
    """Directories that hosts see as they are here, read-only: this project, the interpreter and its environment.

    Everything else is seen through an overlay. What lies in /usr needs no more than that.
    """
    project = Path(__file__).resolve().parents[2]
    others = [str(INTERPRETERS)] if INTERPRETERS.is_dir() else []
    wanted = sorted({str(project), sys.prefix, sys.base_prefix, *others})
    outside = [path for path in wanted if path != "/usr" and not path.startswith("/usr/")]
    return [path for path in outside if not any(path.startswith(other + "/") for other in outside)]
