"""Why nobody can enter a pod yet, or no more, in a sentence of its own for each reason."""

from __future__ import annotations

import re

from nccl_doctor.inventory.kube_api import Container, Pod, State, StateDetail
from nccl_doctor.text.shell import line
from nccl_doctor.transport.kube.options import NotReady

_IMAGE = re.compile(r"ErrImage|ImagePull|InvalidImageName|RegistryUnavailable")
_LACK = re.compile(r"([0-9]+) Insufficient ([\w./-]*\w)")
_LONGEST = 600


def not_ready(pod: Pod, container: Container) -> NotReady | None:
    """Why the container can't be entered; None where it runs."""
    status, describe = pod.status, str(line("kubectl describe pods -n {namespace}", namespace=pod.metadata.namespace))
    if pod.metadata.deleted is not None:
        remedy = f"Wait until its controller has made another. It stays so where its node is lost: {describe}."
        return NotReady(detail="is being deleted", remedy=remedy)
    if status.phase in ("Succeeded", "Failed"):
        why = f": {status.reason}" if status.reason else _exit(_state(pod, container))
        remedy = "Start the job again, and check while it runs; its pods have to live for a check."
        return NotReady(detail=f"has ended ({status.phase}{why})", evidence=_said(status.message), remedy=remedy)
    state = _state(pod, container)
    if state.running is not None and status.phase == "Running":
        return None
    if status.phase == "Pending":
        waiting = _unscheduled(pod, container)
        if waiting is not None:
            return waiting
    return _held(state, pod, describe)


def unready(pod: Pod) -> str | None:
    """Why the cluster calls a pod not ready whose container runs; None where it is ready."""
    lacking = [one.name for one in pod.status.containers if not one.ready]
    condition = next((one for one in pod.status.conditions if one.type == "Ready"), None)
    if condition is None or condition.status == "True":
        return None
    return f"{', '.join(lacking)} not ready" if lacking else condition.reason or "not ready"


def _unscheduled(pod: Pod, container: Container) -> NotReady | None:
    found = next((one for one in pod.status.conditions if one.type == "PodScheduled" and one.status != "True"), None)
    if found is None:
        return None
    if found.reason == "SchedulingGated":
        remedy = "Whoever set the gates lifts them: Kueue, once the job's queue has room (kubectl get workloads)."
        return NotReady(detail="is held back by its scheduling gates", evidence=_said(found.message), remedy=remedy)
    lacks = _LACK.findall(found.message)
    if not lacks:
        remedy = "Change what it demands of a node (selector, affinity, tolerations), or give the cluster such a node."
        return NotReady(detail="is pending: no node takes it", evidence=_said(found.message), remedy=remedy)
    asked = {name: container.resources.requests.get(name, container.resources.limits.get(name)) for _, name in lacks}
    what = " and ".join(
        f"{name}" + (f" ({count} asked for)" if count is not None else "") for name, count in asked.items()
    )
    remedy = (
        f"Ask for less, wait for other jobs to end, or have nodes added; kubectl describe nodes shows what is taken of "
        f"{' and '.join(asked)}."
    )
    return NotReady(detail=f"is pending: no node has enough {what}", evidence=_said(found.message), remedy=remedy)


def _held(state: State, pod: Pod, describe: str) -> NotReady:
    """A pod that has its node, and a container that does not run."""
    later = f"See what the cluster says of it: {describe}."
    if state.waiting is not None:
        reason, said = state.waiting.reason or "no reason given", _said(state.waiting.message)
        if _IMAGE.search(reason):
            remedy = "Mend the image's name or tag, or give the pod the registry's secret (imagePullSecrets)."
            return NotReady(detail=f"does not get its image: {reason}", evidence=said, remedy=remedy)
        if reason == "CrashLoopBackOff":
            remedy = "See why its container ends each time: kubectl logs --previous, which nccl-doctor logs reads."
            return NotReady(detail="ends again and again (CrashLoopBackOff)", evidence=said, remedy=remedy)
        return NotReady(detail=f"has not started its container: {reason}", evidence=said, remedy=later)
    if state.terminated is not None:
        return NotReady(
            detail=f"runs, but its container has ended{_exit(state)}",
            evidence=_said(state.terminated.message),
            remedy=later,
        )
    if pod.status.phase == "Unknown":
        return NotReady(detail="is lost: its node no longer tells of it", remedy=later)
    return NotReady(detail=f"is not running yet ({pod.status.phase})", evidence=_said(pod.status.message), remedy=later)


def _state(pod: Pod, container: Container) -> State:
    every = (*pod.status.containers, *pod.status.init_containers)
    return next((one.state for one in every if one.name == container.name), State())


def _exit(state: State) -> str:
    ended: StateDetail | None = state.terminated
    if ended is None:
        return ""
    words = [ended.reason, "" if ended.exit_code is None else f"status {ended.exit_code}"]
    return f": {', '.join(word for word in words if word)}"


def _said(message: str) -> tuple[str, ...]:
    line = re.sub(r"\s+", " ", message).strip()
    return (line[:_LONGEST],) if line else ()
