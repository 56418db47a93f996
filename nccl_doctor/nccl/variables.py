"""Sources of NCCL's variables and their precedence, the register of known variables, and checks of values.

NCCL reads the file that ``NCCL_CONF_FILE`` names (since 2.23.4) or else ``~/.nccl.conf``, and then reads
``/etc/nccl.conf``. NCCL sets only variables that are not set yet, so the process environment overrides both files, and
the first definition of a variable overrides later definitions. See ``initEnv`` and ``setEnvFile`` in
src/misc/param.cc (since 2.3).

``known_variables.json`` lists NCCL's variables. For 2.3.5 to 2.30.7, the list was made from parameters and ``getenv``
calls in the source of NVIDIA/nccl. For 2.31.2 and 2.32.3, the list was made from strings in the nvidia-nccl wheels. In
``known_variables.json``, "type" is "int" if NCCL parses the variable with ``strtoll``. "since" is the first version
with the variable, "last" is the last version with the variable, and "removed" is the first version without the
variable.

NCCL parses numbers with ``strtoll(value, NULL, 0)``, which stops at the first invalid character. For example, "1M" is
read as 1, and "010" is read as 8. NCCL versions before 2.32 read "true" as 0, and later versions use the default
instead, as tests with the real libraries show (scripts/rdma-fuzz). If a number overflows, NCCL uses the default
(``ncclLoadParam`` in src/misc/param.cc). If a variable accepts only certain words, NCCL ignores all other words.
NCCL_ALGO and NCCL_PROTO are exceptions: from 2.24.3 on, NCCL fails with ncclInvalidUsage if the value contains other
words. NCCL_IB_HCA has its own grammar (src/misc/utils.cc, ``parseStringList`` and ``matchIfList``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.nccl.interfaces import MAX_TOKENS
from nccl_doctor.nccl.versions import CONF_FILE, VersionNumbers, behaviour, show
from nccl_doctor.snapshot.system import ConfigFile
from nccl_doctor.text.bounds import whole_number
from nccl_doctor.text.secrets import LEFT_OUT

NEWEST: VersionNumbers = (2, 30, 7)
"""The NCCL version that is assumed if the version is unknown."""

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = "/.nccl.conf"
"""Suffix of the path of the user's config file. NCCL looks up the user's home directory in the password database."""

LONGEST = 1023  # bytes of a name or a value in a config file; NCCL cuts off the rest

_HIDDEN = "its value was left out of the snapshot"
_DOUBT = f"NCCL reads NCCL_CONF_FILE from {show(CONF_FILE)} on, and which one runs there is not known"

HOSTS_FILE = "hosts file"
ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Variable:
    """A variable as NCCL sees it, with its value and source.

    ``doubt`` is the reason why the value is uncertain, or None.
    """

    name: str
    value: str
    origin: str
    doubt: str | None = None


def parse_config(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the name, value and line number of each variable in a config file, as NCCL reads the file.

    NCCL does not strip whitespace, and "#" starts a comment only in the first column.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#") and name:
            yield _cut(name), _cut(value), number


def _cut(text: str) -> str:
    return text.partition("\0")[0].encode(errors="surrogateescape")[:LONGEST].decode(errors="surrogateescape")


def resolve(
    node: Mapping[str, str],
    environment: Mapping[str, str],
    files: tuple[ConfigFile, ...],
    version: VersionNumbers | None,
) -> dict[str, Variable] | Unknown:
    """Return all variables from the hosts file, the process environment and NCCL's config files, keyed by name.

    If NCCL's version is unknown, variables that depend on the version are marked as doubtful.
    """
    process = {name: _variable(name, value, ENVIRONMENT) for name, value in environment.items()}
    process |= {name: _variable(name, value, HOSTS_FILE) for name, value in node.items()}
    named = process.get("NCCL_CONF_FILE")
    if named is None or not named.value:
        return _with_files(process, None, files)
    if version is not None:
        return _with_files(process, named.value if behaviour(version).conf_file else None, files)
    new, old = _with_files(process, named.value, files), _with_files(process, None, files)
    if isinstance(new, Unknown) or isinstance(old, Unknown):
        return new
    alike = {name for name in new if new[name] == old.get(name)}
    return {name: entry if name in alike else replace(entry, doubt=_DOUBT) for name, entry in (old | new).items()}


def _variable(name: str, value: str, origin: str) -> Variable:
    return Variable(name, value, origin, _HIDDEN if value == LEFT_OUT else None)


def _with_files(
    process: Mapping[str, Variable], named: str | None, files: tuple[ConfigFile, ...]
) -> dict[str, Variable] | Unknown:
    variables = dict(process)
    if named is not None and all(file.path != named for file in files):
        return unknown(f"NCCL_CONF_FILE={named} was not read")
    user = [file for file in files if (file.path == named if named is not None else file.path.endswith(USER_FILE))]
    for file in (*user, *(file for file in files if file.path == SYSTEM_FILE)):
        for name, value, line in parse_config(file.text or ""):
            variables.setdefault(name, _variable(name, value, f"{file.path}:{line}"))
    return variables


PLUGIN_PREFIXES = (  # names with these beginnings belong to a plugin or a tool, which may have any number of them
    "NCCL_OFI_",  # aws-ofi-nccl
    "NCCL_FASTRAK_",  # Google's net plugins
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_SHIMNET_",
    "NCCL_DYNAMIC_CHUNK_SIZE",
    "NCCL_TUNER_",
    "NCCL_INSPECTOR_",  # NCCL's inspector profiler plugin
    "NCCL_PROFILE",
    "NCCL_SHARP_",  # nccl-rdma-sharp-plugins
    "NCCL_UCX_",
    "NCCL_PLUGIN_",
    "NCCL_IBEXT_",
    "NCCL_TESTS",
)

_BUILDS = "ROOT ROOT_DIR HOME DIR PATH VERSION INCLUDE_DIR INCLUDE_DIRS LIB_DIR LIBRARY LIBRARIES LIB VER"
BUILD_NAMES = frozenset(f"NCCL_{part}" for part in _BUILDS.split())
"""Variables that are used in builds and container images, but that the NCCL library does not read."""

_TORCHS = (
    "BLOCKING_WAIT ASYNC_ERROR_HANDLING DESYNC_DEBUG ENABLE_TIMING USE_COMM_NONBLOCKING"
    " USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
)
PYTORCH_NAMES = frozenset(f"NCCL_{part}" for part in _TORCHS.split())
"""Variables in torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp that torch 2.2 renamed to TORCH_NCCL_…."""


@dataclass(frozen=True)
class Known:
    """A variable of NCCL. The module docstring explains ``last`` and ``removed``."""

    name: str
    type: Literal["int", "text"] | None
    since: str
    last: str | None = None
    removed: str | None = None

    def absent(self, version: VersionNumbers) -> str | None:
        """Return the reason why this version does not read the variable, or None if the version reads the variable."""
        if version[:2] < _pair(self.since):
            return f"NCCL supports this variable only in version {self.since} and later"
        if self.removed is not None and version[:2] >= _pair(self.removed):
            return f"NCCL has not supported it since {self.removed}"
        if self.last is not None and version[:2] > _pair(self.last):
            return f"NCCL supported it up to {self.last}"
        return None


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


@cache
def register() -> dict[str, Known]:
    text = resources.files(__package__).joinpath("known_variables.json").read_text(encoding="utf-8")
    return {
        name: Known(name, row.get("type"), row["since"], row.get("last"), row.get("removed"))
        for name, row in json.loads(text).items()
    }


_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)?")
_INT64 = range(-(2**63), 2**63)

PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path types of NCCL (``topoPathTypeStr`` in src/graph/topo.cc) up to SYS, the last one that ``ncclGetLevel`` accepts.

NCCL also accepts numbers from its older numbering of path types.
"""

WORDS: dict[str, tuple[str, ...]] = {
    "NCCL_DEBUG": ("NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_LAUNCH_MODE": ("PARALLEL", "GROUP"),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
    "NCCL_ALGO": ("Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
}
"""Words that NCCL accepts as values, keyed by variable.

NCCL accepts the words in uppercase and lowercase letters. The values of NCCL_PROTO and NCCL_ALGO are comma-separated
lists with an optional "^" in front (src/graph/tuning.cc).
"""

EXACT_WORDS: dict[str, tuple[str, ...]] = {  # case-sensitive (``strcmp``)
    "NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_IB_ADDR_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_P2P_LEVEL": PATHS,
    "NCCL_NET_GDR_LEVEL": PATHS,
}

RANGES: dict[str, tuple[int, int]] = {
    "NCCL_IB_TIMEOUT": (0, 31),  # five bits of the queue pair (ibv_modify_qp(3))
    "NCCL_IB_RETRY_CNT": (0, 7),  # three bits
    "NCCL_IB_SL": (0, 15),
    "NCCL_IB_TC": (0, 255),
    "NCCL_IB_GID_INDEX": (-1, 255),
    "NCCL_SOCKET_NTHREADS": (1, 16),  # src/transport/net_socket.cc
    "NCCL_NSOCKS_PERTHREAD": (1, 64),
    "NCCL_CROSS_NIC": (0, 2),
}
"""The smallest and the largest meaningful value of each variable. The value -2 is always allowed because it means "not
set" in NCCL.
"""

_TRAFFIC_CLASS: VersionNumbers = (2, 26, 2)
"""The first NCCL version in which NCCL_IB_SL and NCCL_IB_TC are -1 by default.

The value -1 means the communicator's traffic class, or 0 if the communicator has none.
"""

_ATTN: VersionNumbers = (2, 31, 0)
"""The first NCCL version in which NCCL_DEBUG has the level ATTN (warnings and notices)."""

_STRICT_WORDS: VersionNumbers = (2, 24, 3)
"""The first NCCL version that fails if NCCL_ALGO or NCCL_PROTO contains an unknown word (``parseList``)."""

TRUTH = ("true", "false", "yes", "no", "on", "off", "enable", "enabled", "disable", "disabled")
"""Words for true and false that users might write where NCCL expects a number."""

_TORCH_NUMBERS = "ASYNC_ERROR_HANDLING RANKS_PER_ROOT HEARTBEAT_TIMEOUT_SEC WAIT_TIMEOUT_DUMP_MILSEC COORD_CHECK_MILSEC"
_TORCH_FLAGS = (
    "BLOCKING_WAIT NAN_CHECK CUDA_EVENT_CACHE DESYNC_DEBUG ENABLE_TIMING ENABLE_MONITORING DUMP_ON_TIMEOUT"
    " RETHROW_CUDA_ERRORS AVOID_RECORD_STREAMS BCAST_UNIQUEID USE_TENSOR_REGISTER_ALLOCATOR_HOOK HIGH_PRIORITY"
)
_FLAG, _NUMBER_WORD = "1 or 0", "a number"
TORCH_VALUES = {
    "TORCH_FR_BUFFER_SIZE": _NUMBER_WORD,
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _NUMBER_WORD,
    "TORCH_FR_CPP_STACK": _FLAG,
    "TORCH_NCCL_TRACE_CPP_STACK": _FLAG,
    "TORCH_DISTRIBUTED_DEBUG": "one of OFF, INFO, DETAIL",
}
"""Values that torch accepts with any backend (FlightRecorder.hpp and debug.cpp in torch/csrc/distributed/c10d)."""

TORCH_NCCL_VALUES = dict.fromkeys((f"TORCH_NCCL_{name}" for name in _TORCH_NUMBERS.split()), _NUMBER_WORD)
TORCH_NCCL_VALUES |= dict.fromkeys((f"TORCH_NCCL_{name}" for name in _TORCH_FLAGS.split()), _FLAG)
"""Values that torch's NCCL backend accepts (ProcessGroupNCCL.cpp)."""

_LEGACY = (
    "HEARTBEAT_TIMEOUT_SEC COORD_CHECK_MILSEC DESYNC_DEBUG ENABLE_MONITORING BCAST_UNIQUEID AVOID_RECORD_STREAMS"
    " RETHROW_CUDA_ERRORS DUMP_ON_TIMEOUT WAIT_TIMEOUT_DUMP_MILSEC"
)
LEGACY_ONLY = frozenset(f"TORCH_NCCL_{name}" for name in _LEGACY.split())
"""Variables of torch's NCCL backend that the nccl2 backend does not read when it starts.

Source: c10d/nccl2/ProcessGroupNCCLBackend.cpp in torch 2.15.
"""
NCCL2_SWITCH = "TORCH_DIST_USE_NCCL2"
_NCCL2_SINCE, _NCCL2_DEFAULT = (2, 14), (2, 15)


def uses_nccl2(torch: str, switch: str | None) -> bool | None:
    """Return whether "nccl" means the nccl2 backend in a version of torch, or None if the version can't be parsed.

    ``switch`` is the value of TORCH_DIST_USE_NCCL2. From torch 2.14 on, the value "1" selects nccl2. From torch 2.15
    on, nccl2 is the default, and the value "0" selects the older backend (torch/distributed/distributed_c10d.py).
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})", torch, re.ASCII)
    if match is None:
        return None
    version = int(match[1]), int(match[2])
    return version >= _NCCL2_SINCE and (switch != "0" if version >= _NCCL2_DEFAULT else switch == "1")


_TORCH_OTHERS = (
    "DEBUG_INFO_PIPE_FILE DEBUG_INFO_TEMP_FILE DUMP_STACK_TRACE EXTRA_DUMP_ON_EXEC LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"
    " NONBLOCKING_TIMEOUT PROPAGATE_ERROR SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TEARDOWN_ON_TIMEOUT"
    " USE_COMM_NONBLOCKING"
)
TORCH_NAMES = frozenset(
    {
        *TORCH_NCCL_VALUES,
        *(f"TORCH_NCCL_{name}" for name in ("TRACE_BUFFER_SIZE", "TRACE_CPP_STACK", *_TORCH_OTHERS.split())),
        *("TORCH_FR_BUFFER_SIZE", "TORCH_FR_CPP_STACK", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"),
        *("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC"),
    }
)
"""Variables that any version of torch from 2.2 to 2.15 reads for its NCCL backend or flight recorder.

Sources: libtorch_cuda.so and ProcessGroupNCCL.hpp.
"""

_FLAGS = frozenset({"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"})
_DEBUG_LEVELS = frozenset({"OFF", "INFO", "DETAIL"})

_IFNAME = f"[^][=]name[,name…], the signs once and in front, at most {MAX_TOKENS} names, without blanks or quotes"


@dataclass(frozen=True)
class BadValue:
    """A value that NCCL or torch interprets differently from what the user intended, and the allowed values.

    ``reads`` is a verb phrase that states what NCCL or torch does with the value. ``may_change`` is true if later
    versions might accept the value, and ``is_fatal`` is true if the value makes the job fail.
    """

    reads: str
    allowed: str
    may_change: bool = False
    is_fatal: bool = False


def check_value(name: str, value: str, version: VersionNumbers = NEWEST) -> BadValue | None:
    """Return the fault in a variable's value for this NCCL version or for torch 2.2 and later, or None."""
    if allowed := TORCH_VALUES.get(name) or TORCH_NCCL_VALUES.get(name):
        return _judge_torch(value, allowed)
    if not value:
        return None
    if name == "NCCL_SOCKET_IFNAME":
        return _judge_ifname(value)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and name in register():
        return BadValue("treats the quotes as part of the value", "the value without quotes")
    if words := EXACT_WORDS.get(name) or WORDS.get(name):
        return _judge_words(name, value, words, version)
    known = register().get(name)
    return _judge_number(name, value, version) if known is not None and known.type == "int" else None


def _judge_torch(value: str, allowed: str) -> BadValue | None:
    """Check a value as ``getCvarBool`` and ``getCvarInt`` in c10d/Utils.hpp read it.

    ``getCvarInt`` calls ``std::stoi``, which accepts only 32-bit integers.
    """
    number = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", value)
    accepted = {
        _FLAG: value.lower() in _FLAGS,
        _NUMBER_WORD: number is not None and whole_number(number[1]) in range(-(2**31), 2**31),
    }.get(allowed, value.upper() in _DEBUG_LEVELS)
    reads = "rejects this value, so ranks abort or hang at startup"
    return None if accepted else BadValue(reads, allowed, is_fatal=True)


def strtoll(value: str) -> tuple[int, str]:
    """Return the number that C's strtoll with base 0 reads from the value, and the text after the number."""
    match = _NUMBER.match(value)
    if match is None or match.group(2) is None:
        return 0, value
    sign, digits = match.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    number = whole_number(digits) if base == 10 else int(digits, base)
    return (-number if sign == "-" else number), value[match.end() :]


def _judge_number(name: str, value: str, version: VersionNumbers) -> BadValue | None:
    number, rest = strtoll(value)
    low, high = RANGES.get(name, (_INT64.start, _INT64.stop - 1))
    if name in ("NCCL_IB_SL", "NCCL_IB_TC") and version >= _TRAFFIC_CLASS:
        low = -1
    allowed = f"a number from {low} to {high}" if name in RANGES else "a number"
    if value.strip().lower() in TRUTH:
        allowed += ": 1 for yes, 0 for no"
    if number not in _INT64:
        return BadValue("uses its default, because the number is too large", allowed)
    if rest.strip():
        reads = "uses its default" if version >= NO_NUMBER and rest == value else f"reads this value as {number}"
        return BadValue(reads, allowed)
    if number != -2 and not low <= number <= high:
        same = value.strip() == str(number)
        return BadValue(
            "does not support this number, because it is out of range"
            if same
            else f"reads this value as {number}, which is out of range",
            allowed,
            may_change=True,
        )
    return None


def _judge_words(name: str, value: str, words: tuple[str, ...], version: VersionNumbers) -> BadValue | None:
    if name == "NCCL_DEBUG" and version >= _ATTN:
        words += ("ATTN",)
    allowed = "one of " + ", ".join(words)
    if name in EXACT_WORDS:
        numbered = words is PATHS and value[0].isdigit()
        return None if value in words or numbered else BadValue("ignores this value", allowed, may_change=True)
    if name not in ("NCCL_PROTO", "NCCL_ALGO"):
        return None if value.upper() in words else BadValue("ignores this value", allowed, may_change=True)
    if ":" in value or ";" in value:  # from 2.24: a list for each collective
        return None
    known = {"", *(word.lower() for word in words)}  # strtok_r skips empty words
    if version < (2, 14):  # later versions have CollNetDirect and CollNetChain instead
        known.add("collnet")
    strange = [token for token in value.removeprefix("^").split(",") if token.lower() not in known]
    if not strange:
        return None
    fails = " and fails with ncclInvalidUsage" if version >= _STRICT_WORDS else ""
    return BadValue(f"does not recognize {strange[0]!r}{fails}", allowed, may_change=True, is_fatal=bool(fails))


def _judge_ifname(value: str) -> BadValue | None:
    if len(value) == 1:
        return BadValue("treats a single character as unset", _IFNAME)
    tokens = re.sub(r"\A\^?=?", "", value).split(",")
    signed = [token for token in tokens if token.startswith(("^", "="))]
    named = any(token.partition(":")[0] for token in tokens)
    misread = (
        (any(token != token.strip() for token in tokens), "treats the spaces as part of the interface names"),
        (value[0] in "'\"" or value[-1] in "'\"", "treats the quotes as part of the interface names"),
        (bool(signed), f"looks for an interface called {signed[0]!r}" if signed else ""),
        (not named, "accepts no interface" if value[0] == "^" else "accepts every interface"),
        (len(tokens) > MAX_TOKENS, f"reads the first {MAX_TOKENS} names only"),
    )
    return next((BadValue(reads, _IFNAME) for wrong, reads in misread if wrong), None)


RAILS: VersionNumbers = (2, 30, 7)
"""The first NCCL version that reads a rail and a plane in NCCL_IB_HCA and supports NCCL_IB_SUBNET_AWARE_ROUTING."""

MOST_PORTS = 32  # ``MAX_IB_DEVS``: for the list, and for the items of NCCL_IB_HCA
INT64 = range(-(2**63), 2**63)
Variables = Mapping[str, str]


NO_NUMBER: VersionNumbers = (2, 32, 0)
"""The first NCCL version in which a value without a number ("true", "-") means the variable's default.

In earlier versions, a value without a number means 0.
"""


def integer(variables: Variables, name: str, default: int, version: VersionNumbers) -> int:
    """Return the number that NCCL reads from a variable (``ncclLoadParam``).

    The default is used if the value is unset, empty or too large or, from NCCL 2.32 on, if the value does not begin
    with a number.
    """
    value = variables.get(name, "")
    number, rest = strtoll(value)
    ignored = version >= NO_NUMBER and rest == value
    return number if value and number in INT64 and not ignored else default


@dataclass(frozen=True)
class HcaItem:
    """An entry in NCCL_IB_HCA. A ``port`` of None means any port."""

    name: str
    port: int | None = None
    rail: int | None = None
    plane: int | None = None


@dataclass(frozen=True)
class HcaSpec:
    """The value of NCCL_IB_HCA as NCCL parses it. An empty list of items matches every port."""

    exclude: bool
    exact: bool
    items: tuple[HcaItem, ...]

    def find(self, name: str, port: int) -> HcaItem | None:
        """Return the first item that matches a device name and port (``matchIfList``), or None if no item matches."""
        fits = (i for i in self.items if (name == i.name if self.exact else name.startswith(i.name)))
        return next((item for item in fits if item.port in (None, port)), None)

    def accepts(self, name: str, port: int) -> bool:
        return (not self.items or self.find(name, port) is not None) != self.exclude


_ATOI = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def parse_hca(text: str, version: VersionNumbers = NEWEST) -> HcaSpec:
    """Parse a value of NCCL_IB_HCA, ``["^"]["="] name[:port[:rail[:plane]]] {"," …}``.

    Spaces are significant, so they are not stripped.
    """
    exclude = text.startswith("^")
    rest = text[1:] if exclude else text
    exact = rest.startswith("=")
    items = []
    for part in (rest[1:] if exact else rest).split(","):
        name, colon, numbers = part.partition(":")
        if name:
            port, rail, plane = [*numbers.split(":"), "", "", ""][:3]
            more = (_number(rail), _number(plane)) if version >= RAILS else (None, None)
            number = _atoi(port) if colon and (port or version < RAILS) else -1
            items.append(HcaItem(name, None if number == -1 else number, *more))
    return HcaSpec(exclude, exact, tuple(items[:MOST_PORTS]))


def _atoi(text: str) -> int:
    match = _ATOI.match(text)
    return whole_number(match[1]) if match else 0


def _number(text: str) -> int | None:
    return _atoi(text) if text else None
