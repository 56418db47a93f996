"""A container could not be started.

What it means: The import of the image, a mount, the container runtime or the GPU hook failed, so the job did not start
on the host.

How we know: The log contains an error from pyxis ("container start failed", "failed to import docker image"), enroot or
nvidia-container-cli. Other signs are "OCI runtime create failed", Docker's "Error response from daemon", and
ImagePullBackOff in Kubernetes.

Fix: Start a container from the same image manually on the host. Check the host's disk space (`df /run /tmp`), the name
of the image, the registry credentials, and the output of `nvidia-container-cli info`.

References: github.com/NVIDIA/pyxis; github.com/NVIDIA/enroot; runc create.
"""

from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD923", explains=("killed", "peer-died", "script-failed", "rendezvous-timeout", "disk-full"))


def _advice(case: Case) -> Advice:
    host = case.address.host
    return advise(
        f"A container could not be started on {case.who if case.who != 'a rank' else host or 'a host'}, so the job "
        "never started on it.",
        "Start the same image by hand on that host; the log line says whether the image, mount, GPU hook or disk "
        "failed.",
    )


RULES = (
    root(
        r"(?:pyxis: (?:container start failed|failed to (?:import|create|start)|couldn't (?:start|get|create))"
        r"|failed to import docker image|enroot-\w+: (?:error|failed)|couldn't start container)",
        "slurmstepd: error: pyxis: container start failed with error code: 1",
    ),
    likely(
        r"\[ERROR\] .{0,40}(?:nvidia\.sh|enroot|/etc/enroot)",
        "pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
    ),
    root(
        r"(?:OCI runtime (?:create|exec|start) failed|nvidia-container-cli: .{0,80}(?:error|failed)"
        r"|failed to create (?:shim|containerd) task|error (?:running|during) (?:hook|container init)"
        r"|Error response from daemon|(?:Err)?ImagePull(?:BackOff|Error)?: |CreateContainer(?:Config)?Error"
        r"|RunContainerError|FATAL: .{0,60}(?:container|image|SIF|squashfs))",
        "docker: Error response from daemon: failed to create task for container: OCI runtime create failed: runc "
        "create failed",
    ),
)

SIGNS = LogSigns(RULES, _advice, after=("cuda-driver-mismatch", "out-of-memory"))
