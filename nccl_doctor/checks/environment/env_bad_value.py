"""NCCL interprets an environment variable in an unintended way, or torch rejects its value.

What it means: NCCL parses numbers with C's strtoll, which stops at an invalid character without an error. For example,
NCCL before 2.32 reads NCCL_IB_DISABLE=true as 0 and keeps InfiniBand enabled. In most variables that accept keywords,
NCCL ignores an unknown keyword. In NCCL's config file, quotes and spaces are part of the value.

How we know: the value is compared with the type, keywords and range that NCCL's source defines for the variable, and
with the result of strtoll. NCCL_COMM_ID must consist of an address and a port, and the address must be on one of the
host's subnets. NCCL_HOSTID must differ between machines, which nccl-doctor identifies by their boot IDs. If two
machines have the same NCCL_HOSTID, NCCL treats them as one machine. NCCL then fails with "Duplicate GPU detected"
(since NCCL 2.30, "Multiple Ranks are using the same GPU"), or fails to open shared memory. Most TORCH_NCCL_ and
TORCH_FR_ variables must be a number or a Boolean (1, true, yes, 0, false, no). Variables that are paths, such as
TORCH_FR_DUMP_TEMP_FILE, are not checked. If a variable that must be a number or a Boolean has an invalid or empty
value, torch fails with "Invalid value for environment variable", hangs or aborts. TORCH_DISTRIBUTED_DEBUG must be OFF,
INFO or DETAIL. Since torch 2.15, the backend name "nccl" selects the nccl2 backend unless TORCH_DIST_USE_NCCL2=0 is
set. The nccl2 backend does not read some of the TORCH_NCCL_ variables when it starts.

Fix: correct the value in the place that the report names (the hosts file, the SSH environment, or a line of NCCL's
config file).

See NCCL's documentation of its environment variables, and src/misc/param.cc in its source.
"""

import re

from nccl_doctor.checks.effects import SETTING
from nccl_doctor.checks.own_names import is_without_gpus, on_nccl2
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.logs.rule import Grade, likely, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, make_advice
from nccl_doctor.model.effect import WAITS, Effect, Reach
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.interfaces import NcclFailure
from nccl_doctor.nccl.variables import LEGACY_ONLY, NEWEST, TORCH_NCCL_VALUES, TORCH_VALUES, BadValue, check_value
from nccl_doctor.nccl.versions import newer
from nccl_doctor.snapshot.system import Identity
from nccl_doctor.text.hostlist import fold, quoted
from nccl_doctor.text.secrets import part

ONE_HOST = Effect(
    ("duplicate-gpu", "shm-attach-failed", "gdr-p2p-fault", "nccl-unknown-error", "hang"),
    Reach.ALL,
    "if two machines have the same NCCL_HOSTID, NCCL tries to connect their ranks through shared memory and P2P",
    ("nccl",),
)
REFUSED = Effect(
    (*WAITS, "not-started", "exit", "SIGABRT", "env-bad-value"),
    Reach.MEETS,
    "a rank that exits or hangs while torch creates the process group never joins the process group",
)


@check(
    "NCD802",
    phrase="variable with a bad value",
    severity=Severity.WARNING,
    needs=("env", "config_files", "interfaces"),
    needs_nccl=True,
    explains=(SETTING, ONE_HOST, REFUSED),
)
def env_bad_value(view: View) -> Findings:
    yield from _same_host_ids(view)
    bad_values: dict[tuple[str, str, str | None], tuple[BadValue, dict[str, str]]] = {}
    nccl2 = {host for host, used in on_nccl2(view).items() if used}
    for host, host_nccl in view.by_host.items():
        for name, variable in host_nccl.variables.items():
            if name in TORCH_NCCL_VALUES and is_without_gpus(view):
                continue  # read by the NCCL backend alone
            if name in LEGACY_ONLY and host in nccl2:
                continue
            bad = check_value(name, variable.value, host_nccl.version or NEWEST)
            if name == "NCCL_COMM_ID":
                failure, allowed = host_nccl.choice.bootstrap, "IP:PORT or [IPv6]:PORT on a subnet of every host"
                bad = None
                if isinstance(failure, NcclFailure):
                    bad = BadValue(f"does not start, because {failure.reason}", allowed, is_fatal=True)
            if bad is not None and variable.doubt is not None:
                yield Unjudged((host,), variable.doubt)
            elif bad is not None:
                key = name, variable.value, newer(host_nccl.version) if bad.may_change else None
                bad_values.setdefault(key, (bad, {}))[1][host] = variable.origin
    for (name, value, since), (bad, origins) in bad_values.items():
        of_torch = name in TORCH_VALUES or name in TORCH_NCCL_VALUES
        yield Finding(
            hosts=tuple(origins),
            message=f"{name}={quoted(value)}: {'torch' if of_torch else 'NCCL'} {bad.reads}"
            f"{f' ({since})' if since else ''}.",
            evidence=folded((host, f"{name}={quoted(value)} ({origin})") for host, origin in origins.items()),
            facts={"variable": name, "value": value, "reads": bad.reads, "allowed": bad.allowed, "origins": origins},
            fix=f"Allowed: {bad.allowed}. It is set on {fold(origins)}: {', '.join(set(origins.values()))}.",
            severity=Severity.INFO if since else Severity.ERROR if bad.is_fatal else None,
            explains=(REFUSED if of_torch else SETTING,),
        )


def _same_host_ids(view: View) -> Findings:
    """Yield a finding for each value of NCCL_HOSTID that is set on several machines (src/misc/utils.cc)."""
    ids: dict[str, dict[str, str]] = {}
    for host, host_nccl in view.by_host.items():
        variable = host_nccl.variables.get("NCCL_HOSTID")
        if variable is not None and variable.doubt is not None:
            yield Unjudged((host,), variable.doubt)
        elif variable is not None:
            ids.setdefault(variable.value, {})[host] = variable.origin
    boots = {host.name: facts.identity.boot_id for host, facts in view.facts if isinstance(facts.identity, Identity)}
    for value, origins in ids.items():
        where = fold(origins)
        if len({boots.get(host) or host for host in origins}) > 1:
            yield Finding(
                hosts=tuple(origins),
                message=f"NCCL_HOSTID is {quoted(value)} on {where}, so NCCL treats these hosts as one.",
                evidence=folded((host, f"NCCL_HOSTID={quoted(value)} ({origin})") for host, origin in origins.items()),
                facts={"variable": "NCCL_HOSTID", "value": value, "origins": origins},
                fix="Unset NCCL_HOSTID, or give each machine a value of its own.",
                severity=Severity.ERROR,
                explains=(ONE_HOST,),
            )


_ANY = make_advice(
    "NCCL does not use a setting as intended on {who}.",
    "Correct or unset the variable or the file that the line names; look into ~/.nccl.conf and /etc/nccl.conf too:",
)
_TOPOLOGY = re.compile(r"XML|Attribute \S{1,40} of node \S{1,40} not found|NCCL_TOPO_FILE")
"""Pattern for messages from NCCL's topology parser (src/graph/xml.h, xml.cc)."""


def _advice(case: Case) -> Advice:
    if not any(_TOPOLOGY.search(event.text) for event in case.cause.events):
        return _ANY(case)
    files = [path for topic, path, _ in case.log.facts.chosen if topic == "topology"]
    named = f": {part(files[0], 0, 160)} (NCCL_TOPO_FILE)" if files else ""
    which = (
        "that file" if files else "the file in NCCL_TOPO_FILE, or the one that a network plugin brings (aws-ofi-nccl)"
    )
    return advise(
        f"NCCL can't use the description of the topology on {case.who}{named}.",
        f"Correct {which}: it must fit this NCCL and this machine. Without NCCL_TOPO_FILE, and with "
        "NCCL_NET_PLUGIN=none if a plugin sets it, NCCL finds the topology by itself.",
        case.check(),
    )


# NCCL's warnings about a setting or a file that it can't use.
RULES = (
    *roots(
        r"Invalid NCCL_COMM_ID",
        "n1:9:9 [0] bootstrap.cc:88 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>",
        r"WARN .*(?:Could not open XML (?:topology|graph) file|XML (?:Topology|Graph) has wrong version|XML Parse"
        r"|XML Mismatch|XML Import Channel)",
        "n1:1:2 [0] graph/xml.cc:500 NCCL WARN Could not open XML topology file /etc/topo.xml : No such file or "
        "directory",
        r"WARN .*(?:[Nn]o algorithm/protocol available|Unrecognized (?:element|prefix) token"
        r"|All entries except the first must have a prefix)",
        "n1:1:2 [0] enqueue.cc:1 NCCL WARN Error : no algorithm/protocol available",
        # c10d/Utils.hpp
        r"Invalid value for environment variable: (?:TORCH_NCCL_|NCCL_|TORCH_FR_)"
        r"|The value of TORCH_DISTRIBUTED_DEBUG must be",
        "RuntimeError: Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT",
    ),
    likely(
        r"WARN .*(?:Invalid NCCL_\w+|NCCL_\w+\S* (?:value|has invalid|is too|unknown value|is out of range"
        r"|set to a value))",
        "n1:1:2 [0] init.cc:1 NCCL WARN Invalid NCCL_COMM_BLOCKING value 7",
    ),
)

SIGNS = LogSigns(RULES, _advice, after=("plugin-fault",), warning_up_to=Grade.LIKELY)
