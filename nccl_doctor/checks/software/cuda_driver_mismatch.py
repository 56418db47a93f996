"""The NVIDIA driver is too old for the CUDA version that torch was built for.

What it means: `torch.cuda.is_available()` returns False with the warning "The NVIDIA driver on your system is too old",
or CUDA fails with "driver version is insufficient for CUDA runtime version". If parts of the driver have different
versions ("Driver/library version mismatch"), see gpu-driver-down.

How we know: the driver version from nvidia-smi is compared with the minimum driver version for torch's CUDA version.
The minimum driver version is 580.65.06 for CUDA 13, 525.60.13 for CUDA 12, and 450.80.02 for CUDA 11 (NVIDIA, "CUDA
Compatibility", minor version compatibility). For earlier CUDA releases, the minimum is the driver version shipped with
the toolkit. With a forward-compatibility package (`cuda-compat`) on LD_LIBRARY_PATH, nothing is reported. The same
applies if `ldconfig -p` leads to a libcuda.so.1 whose version is new enough and differs from the driver's, since
NVIDIA's container runtime puts the package of an image there. If torch is built without CUDA, the driver version is not
checked.

Fix: update the driver and reboot the host, or install a torch build for an older CUDA version.
"""

import re

from nccl_doctor.checks.effects import CUDA
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import roots
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.system import GpuDriver, TorchInfo
from nccl_doctor.text.hostlist import fold

LEAST = {
    "13": "580.65.06",
    "12": "525.60.13",
    "11": "450.80.02",
    "10.2": "440.33",
    "10.1": "418.39",
    "10.0": "410.48",
    "9.2": "396.26",
    "9.1": "387.26",
    "9.0": "384.81",
}
"""Oldest Linux driver for each major version of CUDA, and for each release before CUDA 11 (CUDA Toolkit release notes).
"""


@check(
    "NCD505",
    phrase="driver too old for CUDA",
    severity=Severity.ERROR,
    needs=("torch", "gpus"),
    explains=(CUDA,),
    in_logs=("cuda-error", "gpu-count-low", "torch-missing"),
)
def cuda_driver_mismatch(view: View) -> Findings:
    """Yield one finding per incompatible pair of driver and CUDA versions."""
    old: dict[tuple[str, str, str], list[str]] = {}
    for host, facts in view.facts:
        if not isinstance(facts.torch, TorchInfo) or facts.torch.cuda is None:
            continue
        gpus = known(facts.gpus)
        least = needed(facts.torch.cuda)
        env = {**({} if isinstance(facts.env, Unknown) else facts.env), **host.node.env}
        lifted = "compat" in env.get("LD_LIBRARY_PATH", "")  # a package may replace the driver's own library
        library = facts.gpu_driver.libcuda if isinstance(facts.gpu_driver, GpuDriver) else None
        lifted = lifted or bool(library and least and _numbers(library) >= _numbers(least))
        if gpus and least and _numbers(gpus[0].driver) < _numbers(least) and not lifted:
            old.setdefault((gpus[0].driver, facts.torch.cuda, least), []).append(host.name)
    for (driver, cuda, least), hosts in old.items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"NVIDIA driver {driver} on {fold(hosts)} is too old for torch's CUDA {cuda}, which needs "
            f"{least} or "
            "newer.",
            evidence=(f"nvidia-smi: driver {driver}", f"torch is built for CUDA {cuda}"),
            facts={"driver": driver, "cuda": cuda, "least_driver": least},
            fix="Update the driver and reboot, or install a torch that was built for an older CUDA version.",
        )


def needed(cuda: str) -> str | None:
    """Return the oldest driver that supports a CUDA release such as "12.8", or None if the release is unknown."""
    major, _, minor = cuda.partition(".")
    return LEAST.get(major) or LEAST.get(f"{major}.{minor.partition('.')[0]}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


ADVICE = make_advice(
    "The NVIDIA driver of {who} is too old for this CUDA version, is not loaded, or was updated while in use.",
    "Install a driver that supports this CUDA version, or a torch built for the driver's. Load a driver that is not "
    "loaded (modprobe nvidia), and reboot after an update.",
)

# CUDA's errors 35, 803 and 804, and messages of torch and the driver.
RULES = roots(
    r"(?:driver version is insufficient|cudaErrorInsufficientDriver|Driver/library version mismatch"
    r"|NVRM: API mismatch|driver on your system is too old)",
    "n1:1:2 [0] misc/cudawrap.cc:9 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime "
    "version'",
    r"(?:forward compatibility was attempted on non supported HW"
    r"|provided PTX was compiled with an unsupported toolchain|CUDA Driver version found is \d+\. Minimum"
    r"|cudaErrorCompatNotSupported|CUDA driver is older than|requires CUDA driver \d|unsupported display driver"
    r"|API call is not supported in the installed CUDA driver|CUDA driver initialization failed"
    r"|libcuda\.so\S*: cannot open shared object)",
    "Error 804: forward compatibility was attempted on non supported HW",
    r"(?:[Cc]ouldn't communicate with the NVIDIA driver|Found no NVIDIA driver on your system|"
    r"(?:no|not) (?:kernel )?NVIDIA (?:kernel )?driver (?:found|loaded)|failed: Driver Not Loaded)",
    "RuntimeError: Found no NVIDIA driver on your system.",
)

SIGNS = LogSigns(RULES, ADVICE)
