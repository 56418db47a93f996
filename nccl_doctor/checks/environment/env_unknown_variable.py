"""A variable named NCCL_…, TORCH_NCCL_… or GLOO_… is unknown to NCCL and its plugins, to torch and to gloo.

What it means: NCCL ignores unknown variables without a warning. A misspelt variable such as NCCL_SOCKET_IFNAMES or
NCCL_IB_DISABLED has no effect, and the job runs with the default. There is no NCCL_TIMEOUT variable, because the time
limit for collectives is an argument of torch's init_process_group. NCCL has no variable that sets the range of its
ports, which come from net.ipv4.ip_local_port_range.

How we know: nccl-doctor has a list of all variables in the source of NCCL 2.3 to 2.30 and in the libraries of NCCL 2.31
and 2.32. For each variable, the list shows the first and the last NCCL release that reads it. Variables with the prefix
of a known plugin (aws-ofi-nccl's NCCL_OFI_, Google's NCCL_FASTRAK_ and others) and variables of old and new torch
releases are not reported. A torch or gloo variable is reported only if its name is similar to a known name.

Fix: correct the name, or unset the variable. The diagnosis names the place where the variable is set: the hosts file,
the SSH environment, or a line of NCCL's config file.
"""

from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.misspelt import Meant, advice, is_known, meant, reader
from nccl_doctor.nccl.variables import register
from nccl_doctor.nccl.versions import newer, show
from nccl_doctor.text.hostlist import fold, quoted
from nccl_doctor.text.secrets import LEFT_OUT

READERS = {"NCCL": "an NCCL", "torch": "a torch", "gloo": "a gloo"}


@check(
    "NCD801",
    phrase="unknown NCCL variable",
    severity=Severity.WARNING,
    needs=("env", "config_files", "interfaces"),
    needs_nccl=True,
)
def env_unknown_variable(view: View) -> Findings:
    faults: dict[tuple[str, str | None, str | None], dict[str, str]] = {}
    for host, nccl in view.by_host.items():
        for name, variable in nccl.variables.items():
            known = register().get(name)
            reason = known.absent(nccl.version) if known is not None and nccl.version is not None else None
            if reason is None and not _is_doubtful(name):
                continue
            if variable.doubt is not None and variable.value != LEFT_OUT:  # whether it is set at all
                yield Unjudged((host,), variable.doubt)
                continue
            absent = f"in NCCL {show(nccl.version)}: {reason}" if reason is not None and nccl.version else None
            since = newer(nccl.version) if reader(name) == "NCCL" else None
            faults.setdefault((name, absent, since), {})[host] = variable.origin
    for (name, absent, since), origins in faults.items():
        right = meant(name) if absent is None else None
        unknown = f"{quoted(name)} is not {READERS[reader(name) or 'NCCL']} variable{f' ({since})' if since else ''}"
        remedy = (
            "Remove it" if right is None else f"Write {right.name}{' with the opposite value' * right.opposite} instead"
        )
        yield Finding(
            hosts=tuple(origins),
            message=f"{unknown}{_hint(name, right)}" if absent is None else f"{name} has no effect {absent}.",
            evidence=folded((host, f"{quoted(name)} ({origin})") for host, origin in origins.items()),
            facts={"variable": name, "nearest": right and right.name, "origins": origins},
            fix=f"{remedy} where it is set: {fold(origins)}: {', '.join(dict.fromkeys(origins.values()))}.",
            severity=None if absent is None and since is None else Severity.INFO,
        )


def _is_doubtful(name: str) -> bool:
    """Return whether an environment variable is unknown and should be reported.

    An unknown torch or gloo variable is reported only if its name seems misspelt or made up.
    """
    return not is_known(name) and (reader(name) == "NCCL" or meant(name) is not None or advice(name) is not None)


def _hint(name: str, right: Meant | None) -> str:
    if right is not None:
        return f"; did you mean {right.name}{', which has the opposite meaning' if right.opposite else ''}?"
    hint = advice(name)
    return f": {hint}." if hint is not None else "."
