"""Machines: what a host has too little of, lacks, or does not let anybody do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.lab.odd.row import READY, Make, Row
from tests.lab.odd.shells import bashrc
from tests.lab.odd.users import AS_ALICE, restarted, runs


def without_programs(*programs: str) -> Make:
    """A minimal image: these are nowhere."""
    places = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin")
    return runs("rm -f " + " ".join(f"{place}/{program}" for place in places for program in programs))


def interfaces(pairs: int) -> Make:
    """A host with as many pairs of interfaces as containers make."""

    def make(_lab: Lab, host: LabHost) -> None:
        lines = [f"link add cali{n}a type veth peer name cali{n}b" for n in range(pairs)]
        host.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")

    return make


FULL = " && ".join(
    f"mount -o remount,size=1m {one} && dd if=/dev/zero of={one}/core bs=4k 2>/dev/null || true"
    for one in ("/tmp", "/root")
)
NO_SHM = """
mkdir /run/dev && mount -t tmpfs none /run/dev && cd /run/dev && mkdir pts
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty . && ln -s pts/ptmx ptmx && ln -s /proc/self/fd fd
mount --bind /dev/pts pts && mount --move /run/dev /dev
"""
"""A /dev of its own: the lab's is this machine's."""

ALICES: Mapping[str, Any] = AS_ALICE
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), Path("/the lab needs faketime"))

ROWS = (
    Row("full disks", ("disk-full", "/tmp and /root on", "left"), runs(FULL)),
    Row("a /tmp that can't be written to", READY, runs("mount -o remount,ro /tmp")),
    Row("a home that can't be written to", READY, runs("mount -t tmpfs -o ro none /mnt && chmod 555 /home/alice"), entry=ALICES),
    Row(
        "a home that a login by key can't read, as Kerberos' NFS is",
        READY,
        restarted("mkdir /opt/keys && cp /home/alice/.ssh/authorized_keys /opt/keys/alice && chmod 644 /opt/keys/alice",
                  "sed -i 's|^AuthorizedKeysFile.*|AuthorizedKeysFile /opt/keys/%u .ssh/authorized_keys|' /etc/ssh/sshd_config",
                  "chown root: /home/alice && chmod 700 /home/alice"),
        (0, "Permission denied"),
        ALICES,
    ),
    Row("a ~/.nccl.conf that the user can't read", READY,
        runs("echo NCCL_SOCKET_IFNAME=nosuch >/home/alice/.nccl.conf && chmod 600 /home/alice/.nccl.conf"), entry=ALICES),
    Row("an /etc/nccl.conf that the user can't read", READY,
        runs("echo NCCL_SOCKET_IFNAME=nosuch >/etc/nccl.conf && chmod 600 /etc/nccl.conf"), entry=ALICES),
    Row("no /dev/shm", ("shm-small", "There is no shared memory (/dev/shm)", "Mount a tmpfs"), runs(NO_SHM)),
    Row("no ip, ss, nft, iptables and ps", READY,
        without_programs("ip", "ss", "nft", "iptables", "iptables-save", "ip6tables-save", "xtables-nft-multi", "ps", "lspci")),
    Row("no coreutils but busybox", READY,
        runs("for name in ls cat rm sleep timeout id uname hostname env test echo; do ln -sf /usr/bin/busybox /usr/bin/$name; done")),
    Row("root without CAP_NET_ADMIN", READY, restarted(by="setpriv --bounding-set -net_admin")),
    Row("root as in a container: few capabilities", READY,
        restarted(by="setpriv --bounding-set -sys_admin,-net_admin,-sys_ptrace,-sys_resource,-ipc_lock,-sys_nice,-syslog,-mac_admin,-bpf,-perfmon")),
    Row("root that may not read others' files, as under SELinux", READY,
        restarted(by="setpriv --bounding-set -dac_override,-dac_read_search,-sys_ptrace,-net_admin,-net_raw")),
    Row("no memfd that runs", READY, runs("echo 2 >/proc/sys/vm/memfd_noexec")),
    Row("/proc that shows a user's own processes alone", READY, runs("mount -o remount,hidepid=2 /proc"), entry=ALICES),
    Row("/sys that is not there", READY, runs("umount /sys")),
    Row("little address space", READY, bashrc("ulimit -v 1500000"), entry=ALICES),
    Row("an address space too small for Python", ("python-missing", "memory", "ulimit -v"), bashrc("ulimit -v 9000"), entry=ALICES),
    Row("an address space of 30 MB", ("python-missing", "ulimit -v is 30000 KiB", "memory"), bashrc("ulimit -v 30000"), entry=ALICES),
    Row("few processes", READY, bashrc("ulimit -u 300"), entry=ALICES),
    Row("no further process or thread", ("probe-failed", "can't start new thread"), bashrc("ulimit -u 1"), entry=ALICES),
    Row("no core files, small stack, small files", READY, bashrc("ulimit -c 0; ulimit -s 512; ulimit -f 0"), entry=ALICES),
    Row("256 open files", ("nofile-low", "256"), bashrc("ulimit -n 256"), entry=ALICES),
    Row("nearly no open files", ("nofile-low",), bashrc("ulimit -n 24"), entry=ALICES),
    Row("a clock three years off", ("clock-skew",),
        bashrc(f"export LD_PRELOAD={FAKETIME} FAKETIME=-1095d DONT_FAKE_MONOTONIC=1"), entry=ALICES),
    Row("an upper-case host name", READY, runs("hostname $(hostname | tr a-z A-Z)")),
    Row("a fully qualified host name", READY,
        runs("hostname $(hostname).cluster.example && echo \"$(hostname -I 2>/dev/null || true)\" >/dev/null",
             "sed -i \"s/ $(hostname | cut -d. -f1)$/ $(hostname) &/\" /etc/hosts")),
    Row("300 interfaces", READY, interfaces(150)),
    Row("a name server that never answers", READY,
        runs("echo nameserver 10.77.0.251 >/etc/resolv.conf", "sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf")),
    Row("a nsswitch.conf that names services that are not there", READY,
        runs("sed -i 's/^passwd:.*/passwd: files sss ldap/; s/^hosts:.*/hosts: files myhostname mymachines/' /etc/nsswitch.conf")),
    Row("no machine-id, os-release and passwd entry of a shell", READY, runs("rm -f /etc/machine-id /etc/os-release /usr/lib/os-release")),
    Row("an address of IPv6 beside it", READY, runs("ip -6 address add fd00::7/64 dev eth0 nodad || true")),
)  # fmt: skip

LITTLE = (
    "full disks",
    "a /tmp that can't be written to",
    "a home that a login by key can't read, as Kerberos' NFS is",
    "root as in a container: few capabilities",
)
"""Where an all-reduce has to run all the same."""
