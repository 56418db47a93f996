"""The host has NVSwitches, but the fabric manager that they need is not running.

What it means: CUDA fails with "system not yet initialized" (error 802), or `torch.cuda.is_available()` returns False
although nvidia-smi shows all GPUs.

How we know: the PCI bus shows NVSwitches (A100 and H100 boards), and systemd reports that nvidia-fabricmanager is not
active and no process nv-fabricmanager runs outside systemd (such as in the driver container of NVIDIA's GPU operator).
In a container, systemd can't be queried, so the check uses the GPUs' fabric state, which is "Completed" once the fabric
is ready. GPUs in the fabric state "In Progress" are reported on any host. If the states of nvidia-fabricmanager and the
fabric are both unknown, the check gives no result. In GB200 racks, the NVSwitches are outside the host, so the fabric
manager is not checked. If nvidia-fabricmanager is not running, its version is read from the output of `nv-fabricmanager
--version`. The fabric manager exits at startup unless it has exactly the same version as the driver.

Fix: install nvidia-fabricmanager in exactly the same version as the driver, and start it with `systemctl enable --now
nvidia-fabricmanager`.
"""

from nccl_doctor.checks.effects import CUDA
from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.logs.rule import roots
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.operations.programs import ServiceStart
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.system import GpuDriver
from nccl_doctor.text.hostlist import fold

START = ServiceStart("nvidia-fabricmanager")


@check(
    "NCD506",
    phrase="fabric manager is down",
    severity=Severity.ERROR,
    needs=("pci",),
    explains=(CUDA,),
    in_logs=("cuda-driver-mismatch", "cuda-error", "gpu-count-low"),
)
def fabric_manager_down(view: View) -> Findings:
    down: dict[tuple[str, str, str], list[str]] = {}
    joining: list[str] = []
    for host, facts in view.facts:
        pci = known(facts.pci)
        health = () if isinstance(facts.gpu_health, Unknown) else facts.gpu_health
        joining += [host.name] if any(gpu.fabric == "In Progress" for gpu in health) else []
        registered = bool(health) and all(gpu.fabric == "Completed" for gpu in health)
        if not pci.nvswitches or pci.fabric_manager == "active" or registered or host.name in joining:
            continue
        if pci.fabric_manager is None:
            yield Unjudged((host.name,), "has NVSwitches, and systemd can't be asked about nvidia-fabricmanager")
        else:
            driver = facts.gpu_driver.module if isinstance(facts.gpu_driver, GpuDriver) else None
            version = pci.fabric_manager_version
            versions = (version, driver) if version and driver and version != driver else ("", "")
            down.setdefault((pci.fabric_manager, *versions), []).append(host.name)
    if joining:
        yield Finding(
            hosts=tuple(joining),
            message=f"GPUs on {fold(joining)} have not joined the NVLink fabric; until they do, CUDA fails with "
            '"system not yet initialized" (802).',
            evidence=("nvidia-smi: fabric.state is In Progress",),
            facts={"state": "In Progress"},
            fix="Wait a minute and check again. If they still have not joined, see the fabric manager's log "
            "(journalctl -u nvidia-fabricmanager): its version must equal the driver's.",
        )
    for (state, installed, fitting), hosts in down.items():
        startable = state in ("inactive", "failed") and not installed
        unlike = f" (its version is {installed}, but the driver's is {fitting})" if installed else ""
        wanted = fitting or "of the driver's version"
        words = {"missing": "is not installed", "failed": "has failed"}.get(state, f"is {state}")
        yield Finding(
            hosts=tuple(hosts),
            message=f"{fold(hosts)} {'has' if len(hosts) == 1 else 'have'} NVSwitches, but nvidia-fabricmanager "
            f"{words}{unlike}, so CUDA can't start.",
            evidence=(f"systemctl: nvidia-fabricmanager is {state}",),
            facts={"state": state},
            fix=pasted(
                "Start it:"
                if startable
                else f"Install nvidia-fabricmanager {wanted}, and start it; a different version exits at startup.",
                on_each(hosts, START) if startable else (),
                needs_root=True,
            ),
        )


ADVICE = make_advice(
    "The NVSwitch fabric of {who} is not ready: nvidia-fabricmanager is not running, was restarted while "
    "GPUs were in use, or differs in version from the driver.",
    "Start an nvidia-fabricmanager of exactly the driver's version (systemctl status nvidia-fabricmanager); after "
    "restarting it, reset the GPUs or reboot.",
)

# CUDA's error 802, and NVLink SHARP that can't be bound.
RULES = roots(
    r"(?:system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|[Ee]rror 802\b"
    r"|[Ff]abric ?[Mm]anager.{0,40}(?:not running|fail|not active))",
    "n1:1:2 [0] init.cc:5 NCCL WARN Cuda failure 802 'system not yet initialized'",
    r"Failed to bind NVLink SHARP|transport/nvls\.cc:\d+ .*NCCL WARN .*(?:Cuda failure|CUDA error)",
    "n1:1:2 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
)

SIGNS = LogSigns(RULES, ADVICE)
