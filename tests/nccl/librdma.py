"""Runs the RDMA part of real libnccl on made devices, without a GPU, and hands back what it listed and chose.

``ncclIbInit`` and ``ncclIbGetGidIndex`` (src/transport/net_ib.cc, net_ib/) call CUDA nowhere. They are local symbols of
NVIDIA's wheels, which are not stripped: the table of symbols tells where they are (the second from 2.24 on). Devices
come from a libibverbs of our own (ibverbs.c) and from a sysfs that is mounted for one child alone.

Started as ``python -m tests.nccl.librdma LIBRARY``; reads a JSON list of hosts, writes one of observations.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_doctor.nccl.rdma import address_of
from nccl_doctor.snapshot.system import RdmaDevice
from tests.nccl.libnccl import forked

TIMEOUT_S = 600
HERE = Path(__file__).parent
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
STATES = {"ACTIVE": 4, "DOWN": 1, "INIT": 2, "ARMED": 3}
LAYERS = {"InfiniBand": 1, "Ethernet": 2}
INVALID = "/sys/devices/virtual/net/lo/speed"
"""Reading it ends with EINVAL, as reading the type of an empty GID does."""
_INIT = re.compile(r"_Z10ncclIbInit[^.]*")
_GID = re.compile(r"_ZL?17ncclIbGetGidIndexP11ibv_contexthP13ibv_port_attrPi")
_USING = re.compile(r"NET/IB : Using (.*?) ?(?:\[RO\])?; OOB")
_NIC = re.compile(r"\[\d+\](=\{[^}]*\}|[^\s{=]+)")
_PORT = re.compile(r"[^\s:]+:\d+/\w+")


@dataclass(frozen=True)
class RdmaHost:
    """Devices in the kernel's order, and the environments to ask libnccl under."""

    devices: tuple[RdmaDevice, ...]
    settings: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class RdmaAnswer:
    """What libnccl says, or would.

    Attributes:
        nics: of "NET/IB : Using", as ``mlx5_0:1/RoCE``; those that 2.20 to 2.23 fuse as ``a + b``.
        gids: the GID index of each from 2.24 on; -1 where it ended with an error.
    """

    nics: tuple[str, ...]
    gids: tuple[int, ...]


def observe(library: Path, hosts: Sequence[RdmaHost]) -> list[list[RdmaAnswer]]:
    """What this libnccl lists and chooses on each host under each setting. Needs cc and nm.

    Raises:
        RuntimeError: the devices could not be made or the library not be asked.
    """
    asked = json.dumps(
        [{"devices": [d.model_dump(mode="json") for d in one.devices], "settings": one.settings} for one in hosts]
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    command = [sys.executable, "-m", "tests.nccl.librdma", str(library)]
    if os.geteuid() != 0:
        command = ["unshare", "--user", "--map-root-user", *command]
    with tempfile.TemporaryDirectory() as folder:
        _compile(Path(folder))
        env = {**clean, "LD_LIBRARY_PATH": folder}
        done = subprocess.run(
            command, cwd=HERE.parents[1], input=asked, env=env, text=True, capture_output=True, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the devices could not be tried: {done.stderr.strip()[-2000:]}")
    return [[RdmaAnswer(tuple(a["nics"]), tuple(a["gids"])) for a in host] for host in json.loads(done.stdout)]


def _compile(folder: Path) -> None:
    exported = folder / "exported"
    exported.write_text("IBVERBS_1.1 { global: ibv_*; local: *; };\n")
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,--version-script={exported}"]
    target = folder / "libibverbs.so.1"
    command = ["cc", *options, "-o", str(target), str(HERE / "ibverbs.c")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    target.with_suffix("").symlink_to(target)  # some versions ask for this name first, which a real one may have


def _serve(path: str) -> None:
    listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    symbols = {row[2]: int(row[0], 16) for line in listed.splitlines() if len(row := line.split()) == 3}
    library = ctypes.CDLL(path)
    base = (ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value or 0) - symbols["ncclGetVersion"]
    init = next(name for name in symbols if _INIT.fullmatch(name))
    gid = next((base + place for name, place in symbols.items() if _GID.fullmatch(name)), None)
    # since 2.28: a context, a number and a configuration before the logger and the profiler
    by_context = init.startswith("_Z10ncclIbInitPPvm")
    calls = Calls(base + symbols[init], by_context, gid)
    answers = [forked(functools.partial(_host, calls, one)) for one in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


@dataclass(frozen=True)
class Calls:
    """Where the library's own functions are."""

    init: int
    by_context: bool
    gid: int | None


def _host(calls: Calls, one: dict[str, Any]) -> list[dict[str, Any]]:
    libc = ctypes.CDLL(None, use_errno=True)
    mounts = (("none", "/", None, MS_REC | MS_PRIVATE), ("none", "/sys/class", "tmpfs", 0))
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")
    for source, target, kind, flags in mounts:
        if libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, None) != 0:
            raise OSError(ctypes.get_errno(), f"no mount at {target}")
    root = Path("/sys/class")
    described = root / "made"
    described.write_text("".join(_make(RdmaDevice.model_validate(device), root) for device in one["devices"]))
    os.environ.update(MADE_RDMA=str(described), NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET")
    return [forked(functools.partial(_ask, calls, env)) for env in one["settings"]]


def _make(device: RdmaDevice, root: Path) -> str:
    """The device in sysfs; its lines for the library that lists it."""
    home, card = root / "infiniband" / device.name, root.joinpath("pci0000:00", *device.pci)
    home.mkdir(parents=True)
    card.mkdir(parents=True, exist_ok=True)
    (home / "device").symlink_to(card)
    lines = [f"device {device.name} {int((device.guid or '0').replace(':', ''), 16):x}"]
    for port in device.ports:
        types = home / "ports" / str(port.number) / "gid_attrs" / "types"
        types.mkdir(parents=True)
        layer = LAYERS.get(port.link_layer or "", 0)
        lines.append(f"port {STATES[port.state]} {layer} {port.gid_count or 0}")
        for index in range(port.gid_count or 0):
            entry = next((gid for gid in port.gids if gid.index == index), None)
            if entry is None or entry.type is None:
                (types / str(index)).symlink_to(INVALID)
                continue
            (types / str(index)).write_text(f"{entry.type}\n")
        lines += [f"gid {gid.index} {address_of(gid.gid).packed.hex()}" for gid in port.gids]
    return "\n".join(lines) + "\n"


def _ask(calls: Calls, env: Mapping[str, str]) -> dict[str, Any]:
    os.environ.update(env)
    log = os.memfd_create("nccl")
    os.dup2(log, 1)
    pointer, word = ctypes.c_void_p, ctypes.c_uint64
    none = pointer()
    if calls.by_context:
        context, configuration = ctypes.byref(pointer()), (ctypes.c_char * 256)()
        new = ctypes.CFUNCTYPE(ctypes.c_int, pointer, word, pointer, pointer, pointer)(calls.init)
        new(ctypes.cast(context, pointer), 0, ctypes.cast(configuration, pointer), none, none)
    else:
        ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(calls.init)(none, none)
    ctypes.CDLL(None).fflush(None)
    os.lseek(log, 0, os.SEEK_SET)
    using = _USING.search(os.read(log, 1 << 20).decode(errors="replace"))
    nics = [" + ".join(_PORT.findall(nic)) for nic in _NIC.findall(using[1])] if using else []
    return {"nics": nics, "gids": [] if calls.gid is None else [_gid_index(calls.gid, nic) for nic in nics]}


def _gid_index(function: int, port: str) -> int:
    """``ncclIbGetGidIndex`` for a port by its words."""
    name, _, rest = port.rpartition(":")
    number = int(rest.partition("/")[0])
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    devices = verbs.ibv_get_device_list(None)
    device = next(
        devices[i] for i in range(64) if verbs.ibv_get_device_name(ctypes.c_void_p(devices[i])) == name.encode()
    )
    context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(device)))
    attributes, index = (ctypes.c_char * 128)(), ctypes.c_int(-1)
    verbs.ibv_query_port(context, number, attributes)
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p, ctypes.c_void_p)
    status = kind(function)(context, number, ctypes.addressof(attributes), ctypes.addressof(index))
    return index.value if status == 0 else -1


if __name__ == "__main__":
    _serve(sys.argv[1])
