"""A container could not be started, or no thread can be started in it.

What it means: The import of the image, a mount, the container runtime or the GPU hook failed, so the job did not start
on the host. Or an old container runtime forbids a system call that the image's C library needs to start threads.

How we know: The log contains an error from pyxis ("container start failed", "failed to import docker image"), enroot or
nvidia-container-cli. Other signs are "OCI runtime create failed", Docker's "Error response from daemon", and
ImagePullBackOff in Kubernetes. "pthread_create failed" with "Operation not permitted" means that the container's
seccomp filter forbids clone3(2), which glibc 2.34 and later call first. Docker before 20.10.10, or an old libseccomp or
runc, answers with EPERM instead of ENOSYS, so glibc does not fall back to clone(2). No limit is involved.

Fix: Start a container from the same image manually on the host. Check the host's disk space (`df /run /tmp`), the name
of the image, the registry credentials, and the output of `nvidia-container-cli info`. If threads can't be started,
update Docker or containerd, runc and libseccomp on the host, or start the container with `--security-opt
seccomp=unconfined`.

References: github.com/NVIDIA/pyxis; github.com/NVIDIA/enroot; runc create; clone(2), "clone3()"; chroma-core/chroma
issue 1682.
"""

from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise
from nccl_doctor.model.register import from_logs

from_logs(
    __name__,
    "NCD923",
    explains=("killed", "peer-died", "script-failed", "step-not-started", "rendezvous-timeout", "disk-full"),
)


_NO_THREADS = r"(?:pthread_create|[Tt]hread creation) failed.{0,60}(?:Operation not permitted|\bEPERM\b)"
"""Pattern for a thread that a seccomp filter forbids. A limit on threads gives EAGAIN instead."""


def _advice(case: Case) -> Advice:
    if any(event.wording == _NO_THREADS for event in case.cause.events):
        return advise(
            f"The container's seccomp filter does not let {case.who} start threads (clone3 fails with EPERM).",
            "Update Docker (20.10.10 or later) or containerd, runc and libseccomp on that host; or start the container "
            "with --security-opt seccomp=unconfined, or use an image whose glibc is older than 2.34. Higher limits do "
            "not help.",
        )
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
    root(_NO_THREADS, "OpenBLAS blas_thread_init: pthread_create failed for thread 41 of 64: Operation not permitted"),
)


def _threads(scene: Scene) -> list[Event]:
    """Return the events with Python's "can't start new thread" as a sign of the seccomp filter that forbids threads."""
    files = {event.file for event in scene.events if event.wording == _NO_THREADS}
    return scene.renamed(
        "container-start-failed",
        Grade.ROOT,
        lambda event: event.file in files and event.name == "process-limit-low" and "start new thread" in event.text,
    )


SIGNS = LogSigns(RULES, _advice, after=("cuda-driver-mismatch", "out-of-memory"), passes={PassStage.MEANING: _threads})
