"""A variable named NCCL_… is unknown to this NCCL, to its plugins, to PyTorch and to builds of NCCL.

What it means: NCCL never complains about a name that it does not know. A misspelt variable has no effect, and the job
runs with the default: NCCL_SOCKET_IFNAMES or NCCL_IB_DISABLED change nothing.

How we know: the names that NCCL's source reads at its releases from 2.3 to 2.30 and those in the libraries of 2.31 and
2.32, with the first and last release of each; the prefixes of known plugins (aws-ofi-nccl's NCCL_OFI_, Google's
NCCL_FASTRAK_ and others); old names of PyTorch's variables.

Fix: correct the name, or unset the variable. Its source is shown: the hosts file, the SSH environment, or a line of
NCCL's config file.
"""

from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.variables import is_known, nearest, register
from nccl_doctor.nccl.versions import newer, show
from nccl_doctor.text.hostlist import fold, quoted


@check("NCD801", severity=Severity.WARNING, needs=("env", "config_files", "interfaces"), needs_nccl=True)
def env_unknown_variable(view: View) -> Findings:
    """Yield one finding per name; info where another version may know it."""
    found: dict[tuple[str, str | None, str | None], dict[str, str]] = {}
    for host, own in view.by_host.items():
        for name, variable in own.variables.items():
            known = register().get(name)
            reason = known.absent(own.version) if known is not None and own.version is not None else None
            if reason is None and is_known(name):
                continue
            if variable.doubt is not None:
                yield Unjudged((host,), variable.doubt)
                continue
            absent = f"{reason}; this is {show(own.version)}" if reason is not None and own.version else None
            found.setdefault((name, absent, newer(own.version)), {})[host] = variable.origin
    for (name, absent, since), origins in found.items():
        meant = nearest(name) if absent is None else None
        hint = (f" ({since})" if since else "") + (f"; did you mean {meant}?" if meant is not None else ".")
        unknown = f"{quoted(name)} is not an NCCL variable{hint}"
        remedy = f"Write {meant} instead" if meant is not None else "Remove it"
        yield Finding(
            hosts=tuple(origins),
            message=unknown if absent is None else f"{name} has no effect: {absent}.",
            evidence=folded((host, f"{quoted(name)} ({origin})") for host, origin in origins.items()),
            facts={"variable": name, "nearest": meant, "origins": origins},
            fix=f"{remedy} where it is set: {fold(origins)}: {', '.join(dict.fromkeys(origins.values()))}.",
            severity=None if absent is None and since is None else Severity.INFO,
        )
