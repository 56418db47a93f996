"""The container that the job runs in could not be entered on the host.

What it means: the host was reached, but not the container that `inside:` in the hosts file or `--inside` names. Either
there is no such container, it has stopped or is paused, the user is not allowed to use docker, the runtime is missing
or its service does not answer, or the image has no shell. So nothing is known about the job's environment there.

How we know: `docker exec -i NAME /bin/sh -c …` was run on the host (likewise for podman and nerdctl; `apptainer exec`;
for `enter`, the host's python3) and ended before the container's shell answered. The command's error is quoted; if the
name is wrong, the running containers are listed.

Fix: shown with the diagnosis. Run the commands on the host, not in the container.

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
    for found in of_engine(view, "container-unreachable", joint=":"):
        problem, runtime, name = (str(found.facts.get(key)) for key in ("problem", "runtime", "name"))
        if problem not in _LET_GO or runtime not in _WITH_COMMANDS or not CONTAINER_NAME.fullmatch(name):
            yield found
            continue
        again = ContainerStart(runtime, _LET_GO[problem], name)
        yield found.model_copy(update={"fix": pasted(found.fix.summary, on_each(found.hosts, again))})
