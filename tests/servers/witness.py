"""Random hosts, and which address Ray itself and the socket calls of vLLM and SGLang take there.

Ray is loaded once and never called in that process; each host is a forked child with a network, a name and an
/etc/hosts of its own, and each program a forked child of that one.

Started as ``python -m tests.servers.witness FOLDER``, where ray's packages are; reads a JSON list of hosts, writes one
of sightings. Without FOLDER it installs all of them.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nccl_doctor.probe.facts.engines import read_engines
from nccl_doctor.probe.facts.network import look_up, read_interfaces, read_routes
from tests.lab import kernel
from tests.nccl.libnccl import forked
from tests.patience import LONG_S


class Witness(NamedTuple):
    """A program out of the package index: what is installed, pip's options, what builds it, and variables for that."""

    packages: tuple[str, ...]
    options: tuple[str, ...] = ("--only-binary", ":all:")
    build: tuple[str, ...] = ()
    variables: Mapping[str, str] = MappingProxyType({})


_FOR_ENGINES = ("msgspec", "regex", "pyyaml", "cachetools", "pyzmq")
WITNESSES = {
    "ray": Witness(("ray==2.60.0",)),
    "accelerate": Witness(("accelerate==1.15.0", "safetensors", "huggingface_hub", "pyyaml", "numpy"), ("--no-deps",)),
    "deepspeed": Witness(
        ("deepspeed==0.19.8", "tqdm", "hjson", "py-cpuinfo", "einops", "msgpack", "ninja", "numpy"),
        ("--no-deps", "--no-build-isolation"),
    ),
    "sglang": Witness(("sglang==0.5.23", "orjson", "pybase64", *_FOR_ENGINES), ("--no-deps", "--only-binary", ":all:")),
    # its wheel has 500 MB of kernels; without them it is built of the source in a minute
    "vllm": Witness(
        ("vllm==0.33.0", *_FOR_ENGINES),
        ("--no-deps", "--no-build-isolation", "--no-binary", "vllm"),
        ("setuptools_scm", "setuptools_rust", "packaging", "jinja2", "wheel"),
        {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": "0.33.0"},
    ),
}
"""By name; of SGLang and vLLM what their option parsers need, beside tests/servers/absent.py."""
GCS = "10.100.0.200"
"""Where Ray's head is to be, as a worker is told."""
LINKS = ("eth0", "enp1", "wlan0", "tun0", "docker0", "ib0")


@dataclass(frozen=True)
class Layout:
    """A host: what ``ip -batch`` makes of an empty network, its own lines of /etc/hosts, and its variables."""

    batch: str
    hosts: str
    variables: Mapping[str, str]


def layout(source: random.Random) -> Layout:
    """A host with up to four interfaces, ways out by any of them, and a name that may give anything."""
    names = source.sample(LINKS, source.randint(0, 4))
    lines, addresses = ["link set lo up"], ["127.0.1.1", "127.0.0.1", "203.0.113.9", "::1"]
    for name in names:
        lines += [f"link add {name} type veth peer name p{name}", f"link set p{name} up", f"link set {name} up"]
        net = 100 if name == "enp1" else LINKS.index(name)
        if source.random() < 0.85:
            addresses.append(f"10.{net}.0.5")
            lines.append(f"addr add 10.{net}.0.5/24 dev {name}")
            lines += [f"addr add 10.{net}.0.77/24 dev {name}"] if source.random() < 0.2 else []
            if source.random() < 0.4:
                via = f" src 10.{net}.0.77" if f"addr add 10.{net}.0.77/24 dev {name}" in lines else ""
                where = source.choice(("default", "default", "0.0.0.0/1", "8.8.8.0/24", "unreachable 8.8.8.8"))
                far = "" if where.startswith("unreachable") else f" via 10.{net}.0.254 dev {name}{via}"
                lines.append(f"route add {where}{far} metric {source.randint(1, 9)}")
        if source.random() < 0.3:
            addresses.append(f"2001:db8:{net}::5")
            lines.append(f"addr add 2001:db8:{net}::5/64 dev {name} nodad")
            if source.random() < 0.6:
                lines.append(f"-6 route add default via 2001:db8:{net}::fe dev {name} metric {source.randint(1, 9)}")
    own = source.sample(addresses, source.choice((0, 1, 1, 2)))
    said = {
        name: source.choice((*addresses, ""))
        for name in ("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP")
        if source.random() < 0.15
    }
    if source.random() < 0.3:
        said["SGLANG_LOCAL_IP_NIC"] = source.choice((*names, "enp9", "lo"))
    hosts = "".join(f"{address} {source.choice(('nodea', 'nodea.lan nodea', 'nodea nodea.lan'))}\n" for address in own)
    return Layout("\n".join(lines) + "\n", hosts, said)


def ray() -> Path:
    """The folder with Ray and what it needs."""
    return packages("ray")


def packages(name: str) -> Path:
    """The folder with a witness, out of the package index where scripts/setup did not put it there.

    Nothing of it is compiled but what a test imports, at its first import: of a witness that is a tenth.
    """
    cache, witness = Path(sys.prefix) / "witnesses", WITNESSES[name]
    target = cache / f"{witness.packages[0].replace('==', '-')}-{sys.version_info[0]}.{sys.version_info[1]}"
    cache.mkdir(parents=True, exist_ok=True)
    with Path(f"{target}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may want it at once
        if not target.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target"]
            environ = {**os.environ, **witness.variables}
            if witness.build:
                subprocess.run([*command, f"{folder}/build", *witness.build], check=True)
                environ["PYTHONPATH"] = f"{folder}/build"
            subprocess.run([*command, f"{folder}/found", *witness.options, *witness.packages], check=True, env=environ)
            Path(folder, "found").rename(target)
    return target


def environment() -> dict[str, str]:
    """This process's variables for an interpreter that keeps what it compiles of a witness."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def observe(folder: Path, layouts: list[Layout]) -> list[dict[str, Any]]:
    """Facts of each host as the probe reads them, and by program what it took; needs root."""
    command = [sys.executable, "-m", "tests.servers.witness", os.fspath(folder)]
    told = json.dumps([asdict(one) for one in layouts])
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=root, env=environment(), input=told, text=True, capture_output=True, check=False, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"the hosts could not be tried: {done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


class _NoPackages:
    """An interpreter with nothing installed."""

    def torch(self) -> tuple[None, list[str], str]:
        return None, [], ""


def _host(one: Layout, programs: Mapping[str, Callable[[], str | None]]) -> dict[str, Any]:
    kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    socket.sethostname("nodea")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("hosts", one.hosts), ("nsswitch.conf", "hosts: files\n"), ("resolv.conf", "")):
            Path(folder, name).write_text(text)
            kernel.mount(f"{folder}/{name}", f"/etc/{name}", flags=kernel.MS_BIND)
        subprocess.run(["ip", "-force", "-batch", "-"], input=one.batch, text=True, capture_output=True, check=False)
        os.environ.update(one.variables)
        deadline = time.monotonic() + LONG_S
        facts = {
            "engines": read_engines(_NoPackages(), deadline),  # type: ignore[arg-type]  # it asks for the packages
            "interfaces": read_interfaces(deadline),
            "routes": read_routes(),
            "resolution": {name: look_up(name) for name in ("nodea", GCS)},
        }
        return {
            "facts": facts,
            "answers": {name: forked(functools.partial(_ask, ask)) for name, ask in programs.items()},
        }


def _ask(program: Callable[[], str | None]) -> dict[str, Any]:
    return {"address": program()}


def _way(address: str, port: int, family: int) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, port))
        except OSError:
            return None
        return str(asking.getsockname()[0])


def vllm() -> str:
    """vllm/utils/network_utils.py, get_ip of 0.33.0: the same calls."""
    return (
        os.environ.get("VLLM_HOST_IP")
        or _way("8.8.8.8", 80, socket.AF_INET)
        or _way("2001:4860:4860::8888", 80, socket.AF_INET6)
        or "0.0.0.0"
    )


def sglang() -> str | None:
    """sglang/srt/utils/network.py, get_local_ip_auto of 0.5.23: the same calls."""
    import netifaces

    said = os.environ.get("SGLANG_HOST_IP") or os.environ.get("HOST_IP")
    if said:
        return said
    if nic := os.environ.get("SGLANG_LOCAL_IP_NIC"):
        try:
            own: Any = netifaces.ifaddresses(nic)
        except (ValueError, OSError):
            own = {}
        for family, refused in ((netifaces.AF_INET, ("127.0.0.1", "0.0.0.0")), (netifaces.AF_INET6, ("fe80::", "::1"))):
            for entry in own.get(family, ()):
                if entry.get("addr") and not entry["addr"].startswith(refused):
                    return str(entry["addr"]).partition("%")[0]
    for there in ("8.8.8.8", "2001:4860:4860::8888"):
        try:
            found = socket.getaddrinfo(there, 80, socket.AF_UNSPEC, socket.SOCK_DGRAM, 0, socket.AI_ADDRCONFIG)[0]
            with socket.socket(*found[:3]) as asking:
                asking.connect(found[4])
                return str(asking.getsockname()[0])
        except OSError:
            continue
    try:
        first = socket.getaddrinfo(socket.gethostname(), None, socket.AF_UNSPEC, 0, 0, socket.AI_ADDRCONFIG)[0][4][0]
    except OSError:
        return None
    return None if first in ("127.0.0.1", "0.0.0.0", "::1") else str(first)


def _serve(folder: str) -> None:
    sys.path.append(folder)
    ask_ray = importlib.import_module("ray._raylet").node_ip_address_from_perspective

    programs: dict[str, Callable[[], str | None]] = {
        "vllm": vllm,
        "sglang": sglang,
        "ray": lambda: str(ask_ray(None)),
        "ray worker": lambda: str(ask_ray(f"{GCS}:6379")),
    }
    layouts = [Layout(**one) for one in json.load(sys.stdin)]
    json.dump([forked(functools.partial(_host, one, programs)) for one in layouts], sys.stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        with ThreadPoolExecutor() as installing:
            list(installing.map(packages, WITNESSES))
    for one in sys.argv[1:]:
        _serve(one)
