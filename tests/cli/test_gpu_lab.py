"""Hosts whose GPUs don't work, made of the files and the program that the kernel and NVIDIA's driver would show."""

from __future__ import annotations

import json
import time
from importlib.metadata import distribution
from typing import Any

import pytest

from tests.cli.program import run_in
from tests.hang.running import PATIENCE_S, hang, with_spy
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter

pytestmark = pytest.mark.lab
FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
)
GPU = "0, NVIDIA L4, GPU-11111111-2222-3333-4444-555555555555, 23034, 1, 570.86.15"


def give_gpu(host: LabHost) -> None:
    """A GPU on the PCI bus that no driver holds, and a module for the kernel that runs."""
    host.run(
        "for it in /sys/bus/pci/devices /lib/modules /usr/local/sbin; do mkdir -p $it; mount -t tmpfs -o mode=755 none $it; done"
    )
    for name, text in (("vendor", "0x10de\n"), ("class", "0x030200\n")):
        host.write(f"/sys/bus/pci/devices/0000:41:00.0/{name}", text)
    kernel = host.run("uname -r").stdout.strip()
    host.write(f"/lib/modules/{kernel}/modules.dep", "updates/dkms/nvidia.ko.zst:\n")


def answer(host: LabHost, text: str, status: int) -> None:
    host.write("/usr/local/sbin/nvidia-smi", f'#!/bin/sh\necho "{text}"\nexit {status}\n', 0o755)


def check(lab: Lab, **hosts_file: Any) -> tuple[int, list[dict[str, Any]], str]:
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(**hosts_file))
    done = run_in(lab.controller, "check", "hosts.yaml", "-q", "--no-smoke", "-o", "json")
    screen = run_in(lab.controller, "check", "hosts.yaml", "-q", "--no-smoke").stdout
    return done.returncode, json.loads(done.stdout)["diagnoses"], screen


def test_a_gpu_whose_module_is_not_loaded_is_one_error_with_its_command(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    give_gpu(lab.host("node2"))
    answer(lab.host("node2"), FAILED, 9)
    code, found, screen = check(lab)
    assert (code, [(one["name"], one["hosts"]) for one in found]) == (1, [("gpu-driver-down", ["node2"])])
    assert found[0]["fix"]["commands"] == [{"host": "node2", "command": "modprobe nvidia", "place": None}]
    assert "couldn't communicate" not in screen, "the fault is told once, by its cause"
    answer(lab.host("node2"), GPU, 0)
    assert "gpu-driver-down" not in [one["name"] for one in check(lab)[1]]


def test_gpus_that_the_hosts_file_asks_for_and_nobody_has_are_one_error(lab: Lab) -> None:
    hosts = [{"name": host.name, "cuda_visible_devices": "0,1"} for host in lab.hosts]
    code, found, screen = check(lab, hosts=hosts)
    assert (code, [one["name"] for one in found]) == (1, ["gpu-count-low"])
    assert 'cuda_visible_devices "0,1"' in screen
    assert found[0]["hosts"] == [host.name for host in lab.hosts]
    assert {one["command"] for one in found[0]["fix"]["commands"]} == {"lspci -d 10de:"}
    assert screen.count("lspci -d 10de:") == 1
    assert check(lab)[:2] == (0, [])


def test_two_wheels_of_nccl_in_one_environment_are_one_warning(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    site, host = "/root/site", lab.host("node2")
    host.write(f"{site}/torch/__init__.py", "")
    host.write(f"{site}/torch/version.py", "__version__ = '2.9.1+cu128'\ncuda = '12.8'\nhip = None\n")
    host.write(f"{site}/nvidia/nccl/lib/libnccl.so.2", "of cu12")
    for name, size in (("nvidia_nccl_cu12-2.28.9", 7), ("nvidia_nccl_cu13-2.30.7", 9)):
        host.write(f"{site}/{name}.dist-info/RECORD", f"nvidia/nccl/lib/libnccl.so.2,sha256=x,{size}\n")
    hosts = [{"name": "node1"}, {"name": "node2", "env": {"PYTHONPATH": site}}]
    (found,) = (one for one in check(lab, hosts=hosts)[1] if one["name"] == "nccl-installed-twice")
    assert (found["severity"], found["hosts"]) == ("warning", ["node2"])
    assert "and loads nvidia-nccl-cu12 2.28.9" in found["message"]
    assert check(lab)[:2] == (0, [])


def test_an_nccl_with_a_known_fault_is_told_on_the_gpus_that_meet_it(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    site, host = "/root/site", lab.host("node1")
    host.run("mkdir -p /usr/local/sbin; mount -t tmpfs -o mode=755 none /usr/local/sbin")
    host.write(f"{site}/torch/__init__.py", "")
    host.write(f"{site}/torch/version.py", "__version__ = '2.7.0+cu128'\ncuda = '12.8'\nhip = None\n")
    host.write(f"{site}/nvidia/nccl/lib/libnccl.so.2", "")
    host.write(f"{site}/nvidia_nccl_cu12-2.26.2.dist-info/RECORD", "nvidia/nccl/lib/libnccl.so.2,sha256=x,0\n")
    blackwell = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    rows = [f"{n}, {blackwell}, GPU-{n}1111111-2222-3333-4444-555555555555, 97887, 1, 580.173.02" for n in (0, 1)]
    hosts = [{"name": "node1", "env": {"PYTHONPATH": site}}]
    answer(host, "\n".join(rows), 0)
    (found,) = (one for one in check(lab, hosts=hosts)[1] if one["name"] == "nccl-known-bad")
    assert found["evidence"][1] == "2026-09-17: https://github.com/NVIDIA/nccl/issues/2418"
    answer(host, rows[0], 0)
    assert "nccl-known-bad" not in [one["name"] for one in check(lab, hosts=hosts)[1]]


def test_memory_that_the_kernel_cant_pin_is_told_where_rdma_needs_it(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.host("node1")
    host.run("mount -t tmpfs -o mode=755 none /sys/class; cp /proc/meminfo /root/meminfo")
    for name, text in (("state", "4: ACTIVE"), ("link_layer", "Ethernet"), ("rate", "200 Gb/sec (4X HDR)")):
        host.write(f"/sys/class/infiniband/rocep1s0f0/ports/1/{name}", f"{text}\n")
    host.run("sed -i /^Cma/d /root/meminfo; printf 'CmaTotal: 0 kB\nCmaFree: 940604 kB\n' >> /root/meminfo")
    host.run("mount --bind /root/meminfo /proc/meminfo")
    (found,) = (one for one in check(lab)[1] if one["name"] == "pinned-memory-short")
    assert found["evidence"] == ["/proc/meminfo: CmaFree 940604 kB, CmaTotal 0 kB"]


def test_gpus_behind_an_iommu_that_translates_are_told_without_any_rdma(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    host = lab.host("node1")
    give_gpu(host)
    for address in ("0000:41:00.0", "0000:61:00.0"):
        for name, text in (("vendor", "0x10de"), ("class", "0x030000"), ("iommu_group/type", "DMA-FQ")):
            host.write(f"/sys/bus/pci/devices/{address}/{name}", f"{text}\n")
    ada = "NVIDIA RTX 5880 Ada Generation"
    rows = [f"{n}, {ada}, GPU-{n}1111111-2222-3333-4444-555555555555, 49140, 1, 570.86.15" for n in (0, 1)]
    answer(host, "\n".join(rows), 0)
    (found,) = (one for one in check(lab)[1] if one["name"] == "gpudirect-hindered")
    assert (found["severity"], found["message"][:34]) == ("warning", f"The 2 {ada[:28]}")
    assert "gpudirect-hindered" not in [one["name"] for one in check(lab, env={"NCCL_P2P_DISABLE": "1"})[1]]


def test_a_gpu_that_lost_lanes_is_told_beside_an_idle_one_that_has_all(make_lab: MakeLab) -> None:
    """An idle one with all lanes as janhq/jan issue 183 shows it."""
    lab = make_lab(2)
    host = lab.host("node2")
    give_gpu(host)
    host.run("mkdir -p /run/drivers/nvidia")
    for address, width in (("0000:41:00.0", 8), ("0000:61:00.0", 16)):
        folder = f"/sys/bus/pci/devices/{address}"
        for name, text in (
            ("vendor", "0x10de"),
            ("class", "0x030000"),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", str(width)),
            ("max_link_width", "16"),
        ):
            host.write(f"{folder}/{name}", f"{text}\n")
        host.run(f"ln -s /run/drivers/nvidia {folder}/driver")
    ada = "NVIDIA GeForce RTX 4090"
    rows = [f"{n}, {ada}, GPU-{n}1111111-2222-3333-4444-555555555555, 24564, 1, 570.86.15" for n in (0, 1)]
    answer(host, "\n".join(rows), 0)
    _, found, screen = check(lab)
    (told,) = (one for one in found if one["name"] == "link-slow")
    assert (told["severity"], told["hosts"]) == ("warning", ["node2"])
    assert told["evidence"] == ["node2: GPU 0000:41:00.0: 2.5 GT/s x8 of 16 GT/s x16, 16 Gb/s"]
    assert "NCD320 link-slow" in screen
    host.write("/sys/bus/pci/devices/0000:41:00.0/current_link_width", "16\n")
    assert "link-slow" not in [one["name"] for one in check(lab)[1]], "an idle GPU's speed accuses nobody"


SPINNING = """
import ctypes, os, sys, threading, types
ctypes.CDLL(sys.argv[1])  # the job has loaded NCCL
import torch, torch.distributed as dist

dist.init_process_group("gloo")
for_ever = threading.Lock()
for_ever.acquire()
pending = types.SimpleNamespace(wait=for_ever.acquire)  # as a Work whose kernel never ends
group = type("Group", (), {"allreduce": lambda *_: pending})()
dist.distributed_c10d._get_default_group = lambda: group
open(f"/run/stands-{os.environ['RANK']}", "w").close()
dist.all_reduce(torch.ones(1))
"""


def test_a_standing_job_whose_kernels_spin_is_told_so(make_lab: MakeLab) -> None:
    """As local-inference-lab/rtx6kpro issue 15 shows it: both GPUs at 100% and 120 of 600 W, both ranks in one call."""
    lab = make_lab(1)
    (host,) = lab.hosts
    with_spy(lab)
    host.run("mkdir -p /usr/local/sbin; mount -t tmpfs -o mode=755 none /usr/local/sbin")
    library = str(distribution("nvidia-nccl-cu13").locate_file("nvidia/nccl/lib/libnccl.so.2"))
    host.write("/usr/local/share/train.py", SPINNING)
    launched = [
        interpreter(),
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "/usr/local/share/train.py",
        library,
    ]
    job = host.popen(f"exec {' '.join(launched)} >/run/train.log 2>&1", env={"OMP_NUM_THREADS": "1"}, user="root")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while host.run("ls /run/stands-0 /run/stands-1", check=False).returncode:
            assert time.monotonic() < deadline, host.read("/run/train.log")
            time.sleep(0.2)
        answer(host, "\n".join(["NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 100, 120.31, 600.00"] * 2), 0)
        code, told = hang(lab)
        (found,) = told["diagnoses"]
        assert (code, told["verdict"], found["name"]) == (1, "transport", "link-stalled")
        assert found["message"] == (
            "All ranks wait in one collective, and GPUs of node1 are busy without doing work: its data does not arrive, "
            "or a kernel started before it never ends."
        )
        assert found["evidence"][0].endswith("100% busy at 120.31 of 600 W")
        assert "NCCL_P2P_DISABLE=1" in found["fix"]["summary"]
        answer(host, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 100, 560.02, 600.00", 0)
        code, told = hang(lab)
        assert (code, told["diagnoses"]) == (3, []), "GPUs that work accuse nobody"
    finally:
        job.kill()
        job.wait()
        host.run("pkill -KILL -f '[t]rain.py'", check=False)
