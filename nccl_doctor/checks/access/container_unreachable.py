"""The job's container on the host could not be entered.

What it means: nccl-doctor reached the host, but could not enter the container that `inside:` in the hosts file or
`--inside` names. Possible causes are a container that does not exist, has stopped or is paused, and an image without a
shell. Other possible causes are a user without permission to use Docker, a missing container runtime, or a runtime
service that does not answer. nccl-doctor could not examine the job's environment on the host.

How we know: `docker exec -i NAME /bin/sh -c …` was run on the host, but the container's shell did not answer. For
Podman, nerdctl and Apptainer, nccl-doctor uses the equivalent command, such as `apptainer exec`. If `inside:` or
`--inside` names a process (`enter` and a PID) instead of a container, the host's python3 enters the namespaces of this
process. The report quotes the error message of the failed command and, if no container has the given name, lists the
running containers.

Fix: on the host, outside the container, run the commands that the report shows.

References: docker-exec(1), podman-exec(1), setns(2), capabilities(7).
"""

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.model.base import CONTAINER_NAME
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.operations.programs import ContainerStart

_LET_GO = {"stopped": "start", "paused": "unpause"}
_WITH_COMMANDS = ("docker", "podman", "nerdctl")


@check("NCD109", severity=Severity.ERROR, explains=FOLLOWS, scope="inside", outside=True)
def container_unreachable(view: View) -> Findings:
    for finding in of_engine(view, "container-unreachable", joint=":"):
        problem, runtime, name = (str(finding.facts.get(key)) for key in ("problem", "runtime", "name"))
        if problem not in _LET_GO or runtime not in _WITH_COMMANDS or not CONTAINER_NAME.fullmatch(name):
            yield finding
            continue
        again = ContainerStart(runtime, _LET_GO[problem], name)
        yield finding.model_copy(update={"fix": pasted(finding.fix.summary, on_each(finding.hosts, again))})
