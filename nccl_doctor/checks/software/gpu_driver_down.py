"""A host has a GPU on its PCI bus, but no working GPU driver.

What it means: CUDA finds no device on the host ("Found no NVIDIA driver", "no CUDA-capable device"), so the ranks exit
or fall back to gloo on the CPU.

How we know: the check reads the GPUs on the PCI bus, their kernel drivers, the state of the nvidia module and the
messages of nvidia-smi. The check also tests whether the job's user can open the GPUs' device nodes. The kernels for
which the nvidia module is installed are compared with the running kernel. A common cause is a kernel update after which
the nvidia module was not built for the new kernel. After a driver update without a reboot, the loaded kernel module and
the driver's library have different versions. Another possible cause is that the nouveau driver controls the GPU. A
container might have been started without GPUs, or might have lost its GPUs when systemd was reloaded. If nvidia-smi
prints "No devices were found", the driver could not initialize the GPU, and `dmesg | grep NVRM` might show why. A GPU
that is passed through to a virtual machine (vfio-pci) is not reported. The diagnosis is only a warning if no setting
requests GPUs, nvidia-smi is not installed, and torch either runs in a container or was built without GPU support.

Fix: apply the remedy that the diagnosis shows for the cause.

References: nvidia-smi(1), "RETURN VALUE"; NVIDIA driver README, "Common Problems"; for amdgpu, "ROCm installation
prerequisites" (the groups render and video).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_doctor.checks.effects import CUDA
from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.operation import Operation
from nccl_doctor.model.operations.system import ModuleLoad, ModulesBuild, NvidiaDevices, NvidiaUnifiedMemory
from nccl_doctor.snapshot.hosts import Host, HostFacts, gpu_wish
from nccl_doctor.snapshot.system import GpuDriver, Identity, TorchInfo
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.shell import Line, line

TWO_VERSIONS = "Driver/library version mismatch"
FAILURES = (
    "Failed to initialize NVML",
    "NVIDIA-SMI has failed",
    "Unable to determine the device handle",
    "GPU is lost",
)
"""Messages with which nvidia-smi reports a faulty driver.

A hanging or missing nvidia-smi proves nothing about the driver.
"""


DOWN, CLOSED = "but no working driver", "that can't be used"


@dataclass(frozen=True)
class DriverFault:
    """A reason why GPUs can't be used, with a remedy. In the message, the text of ``problem`` follows ``state``."""

    problem: str
    evidence: str
    remedy: str
    commands: tuple[Line | Operation | None, ...] = ()
    reboot: bool = False
    state: str = DOWN
    lost: str | None = None
    """The bus address of the lost GPU, if nvidia-smi names exactly one GPU."""

    def words(self, names: Sequence[str], gpus: int) -> str:
        if self.lost is not None and gpus > 1:
            return f"The driver on {fold(names)} has lost GPU {self.lost}, so nvidia-smi fails for all {gpus} GPUs."
        has = "has" if len(names) == 1 else "each have"
        return f"{fold(names)} {has} {plural(gpus, 'GPU')} {self.state}: {self.problem}."

    def fix(self, hosts: tuple[str, ...]) -> Fix:
        if self.reboot:
            return Fix(summary=self.remedy, risk="disruptive")
        return pasted(self.remedy, on_each(hosts, *self.commands) if self.commands else (), needs_root=True)


HANGS = Effect(
    ("not-started", "in-kernel", "exit"),
    Reach.OWN,
    "a process blocks in the kernel if it calls a driver that does not respond",
)


@check(
    "NCD512",
    phrase="no working GPU driver",
    severity=Severity.ERROR,
    needs=("gpu_driver",),
    explains=("gpu-count-low", "container-differs", CUDA, HANGS),
    in_logs=("cuda-error", "cuda-driver-mismatch", "gpu-count-low"),
    hides=("gpus", "gpu_health", "gpu_processes"),
    row="GPUs",
)
def gpu_driver_down(view: View) -> Findings:
    faults = [
        ((fault, _severity(host, facts)), (host, driver))
        for host, facts in view.facts
        if (driver := known(facts.gpu_driver)) is not None
        for fault in (*_nvidia(facts, driver), *_amd(facts, driver))
    ]
    for (fault, severity), alike in grouped(faults).items():
        names = tuple(host.name for host, _ in alike)
        gpus = max(len(driver.gpus) for _, driver in alike)
        wishes = [wish for host, _ in alike if (wish := gpu_wish(host))]
        yield Finding(
            hosts=names,
            message=fault.words(names, gpus),
            evidence=(fault.evidence, *wishes[:1]),
            facts={"problem": fault.problem},
            severity=severity,
            fix=fault.fix(names),
        )


def _severity(host: Host, facts: HostFacts) -> Severity:
    """Return "error" if the job's settings or the installed software show that the job needs GPUs, else "warning"."""
    driver, torch = known(facts.gpu_driver), facts.torch
    cuda = isinstance(torch, TorchInfo) and (torch.cuda is not None or torch.hip is not None)
    inside = isinstance(facts.identity, Identity) and facts.identity.container is not None
    meant = cuda and not inside  # a container without GPUs may be intended, whatever torch its image has
    return Severity.ERROR if gpu_wish(host) or meant or (driver is not None and driver.smi) else Severity.WARNING


def _nvidia(facts: HostFacts, driver: GpuDriver) -> Iterator[DriverFault]:
    gpus = [gpu for gpu in driver.gpus if gpu.vendor == "nvidia" and gpu.driver != "vfio-pci"]
    words = facts.gpus.reason if isinstance(facts.gpus, Unknown) else ""
    answers = not isinstance(facts.gpus, Unknown) and len(facts.gpus) > 0
    if not gpus or answers:
        return
    if driver.module is None:
        yield _not_loaded(facts, driver, {gpu.driver for gpu in gpus} == {"nouveau"})
        return
    nodes = {path: error for path, error in driver.nodes.items() if path.startswith("/dev/nvidia")}
    refused = [f"{path} ({error})" for path, error in nodes.items() if error is not None]
    inside = isinstance(facts.identity, Identity) and facts.identity.container is not None
    if TWO_VERSIONS in words:
        remedy = "Reboot, since the driver was updated while its old module stayed loaded. Restart a container instead."
        problem = "the driver's library and the loaded kernel module have different versions"
        yield DriverFault(problem, words, remedy, reboot=True)
    elif not nodes and inside:
        remedy = (
            "Start the container again with its GPUs: docker run --gpus all (nvidia-container-toolkit on the host)."
        )
        yield DriverFault("the container was given no GPU", "there is no /dev/nvidia* in it", remedy, state=CLOSED)
    elif not nodes:
        remedy = "Create the device nodes:"
        made = NvidiaDevices(len(gpus)), NvidiaUnifiedMemory()
        yield DriverFault("the device nodes are missing", "there is no /dev/nvidia*", remedy, made, state=CLOSED)
    elif refused and inside:
        remedy = (
            "Restart the container: reloading systemd takes devices away from running containers. The CDI mode of "
            "nvidia-container-toolkit, or docker run with --device for each device node, prevents that."
        )
        yield DriverFault(
            "the container is no longer allowed to open the device nodes",
            f"can't be used: {', '.join(refused[:4])}",
            remedy,
            state=CLOSED,
        )
    elif refused:
        remedy = "Add the user to the group that owns the device nodes (ls -l /dev/nvidia*), and log in again."
        yield DriverFault(
            "the job's user is not permitted to open the device nodes",
            f"can't be used: {', '.join(refused[:4])}",
            remedy,
            state=CLOSED,
        )
    elif facts.gpus == ():
        evidence = f"the nvidia module {driver.module} is loaded, and nvidia-smi finds no device"
        yield DriverFault("the driver could not initialize any GPU", evidence, _REMEDY, (KERNEL_LOG,))
    elif any(failure in words for failure in FAILURES):
        lost = _LOST.search(words)
        yield DriverFault("nvidia-smi fails", words, _REMEDY, (KERNEL_LOG,), lost=lost and lost[1])


_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"
)

KERNEL_LOG = line("dmesg | grep NVRM")
_REMEDY = (
    "If a GPU fell off the bus or its GSP did not start, power-cycle the host; if the kernel module is of the wrong "
    "kind (open or proprietary), install the other one. To see which it is:"
)

_PREBUILT = (
    "Install the driver's module for this kernel in the same way as the driver (on Ubuntu, the package "
    "linux-modules-nvidia-BRANCH-KERNEL; on RHEL, kmod-nvidia; or NVIDIA's installer), or boot a kernel that has it."
)


def _not_loaded(facts: HostFacts, driver: GpuDriver, nouveau: bool) -> DriverFault:
    kernel = facts.identity.kernel if isinstance(facts.identity, Identity) else None
    if nouveau:
        remedy = (
            "Install NVIDIA's driver, keep nouveau away (blacklist nouveau in a .conf file in /etc/modprobe.d, then "
            "run update-initramfs -u on Debian and Ubuntu, or dracut --force on RHEL), and reboot."
        )
        return DriverFault("nouveau is loaded instead of NVIDIA's driver", "driver in use: nouveau", remedy)
    if kernel in driver.built_for:
        loaded = ModuleLoad("nvidia")
        evidence = f"the nvidia module is installed for {kernel}"
        return DriverFault("the kernel module is not loaded", evidence, "Load it:", (loaded,))
    if driver.built_for and kernel is not None:
        problem = "the kernel module is not built for the running kernel"
        evidence = f"the nvidia module is installed for {', '.join(driver.built_for[:3])}; {kernel} runs"
        if not driver.dkms:
            return DriverFault(problem, evidence, _PREBUILT)
        remedy = "Build the module for this kernel (it needs the kernel's headers), and load it:"
        return DriverFault(problem, evidence, remedy, (ModulesBuild(), ModuleLoad("nvidia")))
    words = f"; {facts.gpus.reason}" if isinstance(facts.gpus, Unknown) else ""
    evidence = f"no nvidia module for any kernel{words}"
    return DriverFault("no driver is installed", evidence, "Install NVIDIA's driver, and reboot.")


def _amd(facts: HostFacts, driver: GpuDriver) -> Iterator[DriverFault]:
    """Yield the faults of AMD GPUs if torch is built for ROCm.

    Without a ROCm build of torch, an AMD GPU might be integrated graphics.
    """
    gpus = [gpu for gpu in driver.gpus if gpu.vendor == "amd" and gpu.driver != "vfio-pci"]
    if not gpus or not isinstance(facts.torch, TorchInfo) or facts.torch.hip is None:
        return
    nodes = {path: error for path, error in driver.nodes.items() if not path.startswith("/dev/nvidia")}
    refused = [f"{path} ({error})" for path, error in nodes.items() if error is not None]
    if all(gpu.driver is None for gpu in gpus):
        loaded = ModuleLoad("amdgpu")
        yield DriverFault("amdgpu is not loaded", "driver in use: none", "Load it:", (loaded,))
    elif "/dev/kfd" not in nodes:
        remedy = (
            "Install amdgpu-dkms with ROCm support, or start the container with --device /dev/kfd --device /dev/dri."
        )
        yield DriverFault("amdgpu does not provide ROCm's /dev/kfd", "there is no /dev/kfd", remedy, state=CLOSED)
    elif refused:
        user = facts.identity.user if isinstance(facts.identity, Identity) else None
        added = line("usermod -aG render,video {user}", user=user) if user else None
        remedy = "Add the user to the groups render and video, and log in again:"
        yield DriverFault(
            "the job's user is not permitted to open the device nodes",
            f"can't be used: {', '.join(refused[:4])}",
            remedy,
            (added,),
            state=CLOSED,
        )
