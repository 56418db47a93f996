"""Installs the programs that the lab runs, where they are missing: a real sshd, real firewalls, network namespaces."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.lab.requirements import PACKAGES

PROGRAMS = {
    **PACKAGES,
    "ipset": "ipset",
    "zsh": "zsh",
    "fish": "fish",
    "tcsh": "tcsh",
    "busybox": "busybox",
    "sudo": "sudo",
    "faketime": "faketime",
    "unshare": "util-linux",
    "ps": "procps",
    "nc": "netcat-openbsd",
    "pdsh": "pdsh",
    "strace": "strace",
    "tmux": "tmux",
    "cc": "gcc libc6-dev",  # devices that tests make for libnccl
    "nm": "binutils",
    "chromium": "chromium",  # no host runs it: it looks at HTML reports
}

path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None})
if missing and (os.geteuid() != 0 or shutil.which("apt-get") is None):
    sys.exit(f"the lab needs these programs, and they can only be installed as root with apt-get: {' '.join(missing)}")
print("apt-get installs for the lab:" if missing else "The lab's programs are all there.", *missing, flush=True)
if missing:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *" ".join(missing).split()]
    subprocess.run(install, env=quiet, check=True, stdout=subprocess.DEVNULL)
