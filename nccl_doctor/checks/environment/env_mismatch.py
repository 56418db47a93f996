"""An NCCL variable has different values on different hosts, or is set only on some hosts.

What it means: all ranks must use the same algorithm, protocol, number of channels and network. If the settings of one
host differ, NCCL hangs in its first collective, fails with "invalid usage", or misinterprets messages from other ranks.
The usual cause is a forgotten /etc/nccl.conf on one machine, because every NCCL job on a machine reads this file.

How we know: nccl-doctor determines the values that NCCL would use on each host from the hosts file's env, the SSH
environment and NCCL's config files, and compares these values between hosts. The report shows the source of each value.
Variables that may differ between hosts, such as names of interfaces and HCAs, paths, and logging settings, are not
compared. TORCH_DIST_USE_NCCL2 selects torch's NCCL backend (nccl2 is the default since torch 2.15), and ranks with
different backends can't connect to each other.

Fix: set the same value on all hosts, for example in the hosts file's env, which takes precedence over all other
sources.
"""

from nccl_doctor.checks.effects import SETTING
from nccl_doctor.checks.own_names import is_without_gpus, on_nccl2
from nccl_doctor.checks.view import Findings, View, check, minority
from nccl_doctor.logs.rule import Grade, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.misspelt import is_known
from nccl_doctor.nccl.variables import NCCL2_SWITCH, Variable
from nccl_doctor.snapshot.system import TorchInfo
from nccl_doctor.text.bounds import safe_regex
from nccl_doctor.text.hostlist import fold, grouped, plural, quoted

MAY_DIFFER = frozenset(
    {"NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_PROXY_CPUSET"}
)
"""Variables that may differ between hosts because they describe a single machine."""

MAY_DIFFER_WITH = ("NCCL_DEBUG", "NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_PROFILE", "NCCL_RAS_", "NCCL_IBVERBS_LIB")
"""Prefixes of variables that may differ between hosts because they concern only logging, monitoring or file paths."""

MUST_AGREE = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_COMM_ID", "NCCL_BUFFSIZE"),
        *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_SOCKET_FAMILY", "NCCL_LL128_BUFFSIZE"),
        *("NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC", NCCL2_SWITCH),
    }
)
"""Variables that make the job fail if their values differ between hosts."""


@check(
    "NCD803",
    phrase="variables differ",
    severity=Severity.WARNING,
    needs=("env", "config_files", "interfaces"),
    needs_nccl=True,
    explains=(SETTING,),
)
def env_mismatch(view: View) -> Findings:
    """Yield one finding per differing variable, with the hosts whose values differ from the majority's value."""
    yield from _backends(view)
    for name in dict.fromkeys(name for host_nccl in view.by_host.values() for name in host_nccl.variables):
        # unknown names belong to env-unknown-variable
        if not name.startswith("NCCL_") or not is_known(name) or name in MAY_DIFFER or name.startswith(MAY_DIFFER_WITH):
            continue
        column = {host: host_nccl.variables.get(name) for host, host_nccl in view.by_host.items()}
        doubts = {host: entry.doubt for host, entry in column.items() if entry is not None and entry.doubt is not None}
        if len(set(_values(column).values())) > 1:
            yield from (Unjudged((host,), doubt) for host, doubt in doubts.items())
        certain = {host: variable for host, variable in column.items() if host not in doubts}
        if len(set(_values(certain).values())) > 1:
            yield _finding(name, certain)


def _backends(view: View) -> Findings:
    """Yield a finding if TORCH_DIST_USE_NCCL2 makes torch use different NCCL backends on different hosts."""
    if is_without_gpus(view):
        return
    used = on_nccl2(view)
    for host, host_nccl in view.by_host.items():
        if host not in used and (switch := host_nccl.variables.get(NCCL2_SWITCH)) is not None:
            yield Unjudged((host,), switch.doubt or "torch's version is not known")
    column = {host: view.by_host[host].variables.get(NCCL2_SWITCH) for host in used}
    versions = {facts.torch.version for host, facts in view.facts if isinstance(facts.torch, TorchInfo)}
    if len(set(used.values())) > 1 and len(versions) == 1:
        yield _finding(NCCL2_SWITCH, column)


def _values(column: dict[str, Variable | None]) -> dict[str, str | None]:
    return {host: variable.value if variable is not None else None for host, variable in column.items()}


def _finding(name: str, column: dict[str, Variable | None]) -> Finding:
    values = _values(column)
    outliers = minority(values)
    words = {host: f"{quoted(var.value)} ({var.origin})" if var else "not set" for host, var in column.items()}
    groups = grouped((text, host) for host, text in words.items())
    return Finding(
        hosts=outliers,
        message=f"{name} is not the same on all hosts: {fold(outliers)} differ{'s' * (len(outliers) == 1)}.",
        evidence=tuple(f"{fold(hosts)}: {name} is {text}" for text, hosts in groups.items()),
        facts={"variable": name, "values": values},
        fix=f"Set {name} to one value for all hosts, in the hosts file's env, which takes precedence over the "
        "other places.",
        severity=Severity.ERROR if name in MUST_AGREE else None,
    )


_ROW = safe_regex(
    r"NCCL environment: (?:(?P<name>NCCL_\w+)=(?P<value>.{0,400}) on rank\(s\) \{?(?P<ranks>[\d, -]+)"
    r"|mismatch .{0,200} for (?P<alone>NCCL_\w+))"
)


def _advice(case: Case) -> Advice:
    """Return advice that lists the differing variables from NCCL's report, with the ranks that have each value."""
    names: dict[str, dict[str, str]] = {}
    for row in filter(None, (_ROW.search(event.text) for event in case.cause.events)):
        values = names.setdefault(row["name"] or row["alone"], {})
        if row["name"]:
            ranks = row["ranks"].strip()
            values[row["value"]] = f"rank{'s' * (not ranks.isdigit())} {ranks}"
    descriptions = [
        name + (f" is {' and '.join(f'{quoted(value)} on {on}' for value, on in values.items())}" if values else "")
        for name, values in names.items()
    ]
    more = f"; and {plural(len(descriptions) - MOST, 'more variable')}" if len(descriptions) > MOST else ""
    which = f": {'; '.join(descriptions[:MOST])}{more}" if descriptions else f" (reported by {case.who})"
    return advise(
        f"NCCL's variables differ between ranks{which}.",
        "Make them the same on all hosts, including ~/.nccl.conf and /etc/nccl.conf.",
        case.check(),
    )


MOST = 3  # variables named in the sentence

# NCCL's own comparison of variables between ranks (NCCL DIAG): a line for each variable, and one for each value.
RULES = (
    root(
        r"NCCL DIAG \[INFO\] NCCL environment: (?:mismatch .{0,200} for NCCL_|NCCL_\w{1,64}=.{0,400} on rank\(s\) )",
        "n1:4242 NCCL DIAG [INFO] NCCL environment: mismatch across 16 ranks in comm 0x5f for NCCL_ALGO",
        unless=rf"NCCL environment: (?:mismatch .* for )?(?:{'|'.join(sorted(MAY_DIFFER))}"
        rf"|(?:{'|'.join(MAY_DIFFER_WITH)})\w*)(?:=|\s*$)",
    ),
)

SIGNS = LogSigns(RULES, _advice, warning_up_to=Grade.ROOT)
