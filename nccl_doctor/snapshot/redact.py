"""Removes private data from a snapshot for a bug report and records what was removed.

User names are replaced with "user1", "user2", and so on. The value of a variable is kept only if the variable's name is
on an allowlist. In the command lines of processes, only the program, the script, the names of options, and the values
of torchrun's own options are kept. In launch commands, numbers and addresses are kept, too. Values that checks need are
kept, so that the diagnoses stay the same.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from nccl_doctor.model.base import Holds, marks
from nccl_doctor.text.secrets import LEFT_OUT, without_secrets

PREFIXES = (
    *("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DIST", "TORCHELASTIC_", "PET_", "MASTER_", "GLOO_"),
    *("TP_", "CUDA_", "NVIDIA_", "OMP_", "UCX_", "FI_"),
)
NAMES = frozenset(
    {
        *("VLLM_HOST_IP", "VLLM_PORT", "VLLM_LOOPBACK_IP", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT"),
        *("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
        *("SGLANG_HOST_IP", "HOST_IP", "SGLANG_LOCAL_IP_NIC", "SGLANG_PORT", "SGLANG_TCP_STORE_PORT"),
        *("MOONCAKE_LOCAL_HOSTNAME", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"),
        *("MC_TCP_BIND_ADDRESS", "RAY_ADDRESS"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    }
)
"""Variables that checks read.

The value of a variable is removed unless the variable's name is in this set or has an allowed prefix. The allowed names
and prefixes are those of probe/facts/software.py, except that narrower prefixes replace ``TORCH_``.
"""

SECRET = re.compile(r"secret|passw|passphrase|token|credential|api_?key|access_?key|private_?key|auth", re.IGNORECASE)
"""Pattern for words in a variable's name that mark the value as secret, even if the name has an allowed prefix."""

NOBODY = frozenset({"root", "nobody"})
HOME = re.compile(r"/(?:home|homes|users|Users)/([A-Za-z_][\w.-]{0,63})")
"""Pattern for a home directory in one of the usual parent directories.

The pattern's group matches the user name.
"""
OTHER_HOME = re.compile(r"(/(?:scratch|fsx|u)/)([A-Za-z_][\w.-]{0,63})")
"""Pattern for a path in which a directory's name might be a user name.

The directory's name is always replaced, even if it is not a known user name.
"""
WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z_][\w.-]{0,255}")
PROSE = re.compile(r"[\s/@'\"=]")
"""Pattern for characters that occur in prose or paths.

A value without these characters is a single word that a check might need, so user names in the value are kept.
"""
CONFIG_LINE = re.compile(r"^\s*([A-Za-z_]\w*)\s*=(.*)$")

OPTIONS = frozenset(  # options of Python and torchrun whose values are not secret; with "-" for "_", too
    {
        *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "max_restarts", "standalone"),
        *("rdzv_backend", "rdzv_endpoint", "local_addr", "local_rank", "m"),
    }
)


@dataclass
class Redacted:
    """A record of the data that has been removed so far. ``users`` maps user names to replacements."""

    users: dict[str, str] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    command_lines: int = 0
    texts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = sorted(self.variables)
        shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        counts = (
            ("user names", len(self.users), ""),
            ("values of variables", len(names), f": {shown}"),
            ("arguments of command lines", self.command_lines, ""),
            ("secrets in texts", len(self.texts), ""),
        )
        return ", ".join(f"{what} ({count}{more})" for what, count, more in counts if count)


Kept = TypeVar("Kept", bound=BaseModel)


def redact(snapshot: Kept) -> tuple[Kept, Redacted]:
    """Return the snapshot without user names and secrets, and the record of what was removed."""
    done = Redacted()
    for name in sorted({*_users(snapshot)} - NOBODY):
        done.users[name] = f"user{len(done.users) + 1}"
    return type(snapshot).model_validate(clean(snapshot, snapshot.model_dump(mode="json", by_alias=True), done)), done


def _users(value: object) -> Iterator[str]:
    """Yield the user names from paths of home directories, values of the key "user", and fields for user names."""
    if isinstance(value, BaseModel):
        marked = marks(type(value), Holds)
        yield from (part for name, part in value if marked.get(name) is Holds.USER and isinstance(part, str))
        yield from _users({name: part for name, part in value if marked.get(name) is not Holds.USER})
    elif isinstance(value, dict):
        yield from (part for key, part in value.items() if key == "user" and isinstance(part, str))
        for part in value.values():
            yield from _users(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _users(part)
    elif isinstance(value, str):
        yield from HOME.findall(value)


def clean(value: BaseModel, tree: dict[str, Any], done: Redacted) -> dict[str, Any]:
    """Redact ``tree``, which is ``value`` as JSON, according to the annotations and the contents of the fields."""
    for name, declared in type(value).model_fields.items():
        key, mark = declared.alias or name, marks(type(value), Holds).get(name)
        if key in tree:
            tree[key] = _part(getattr(value, name), tree[key], done, mark)
    for name, part in (value.model_extra or {}).items():
        tree[name] = _untyped(part, done, name)
    return tree


def _part(value: object, tree: object, done: Redacted, mark: Holds | None) -> object:
    if isinstance(value, BaseModel) and isinstance(tree, dict):
        return clean(value, tree, replace(done, users={}) if mark is Holds.RULES else done)
    if mark in _CLEANED and tree is not None:
        return _CLEANED[mark](tree, done)
    if isinstance(value, dict) and isinstance(tree, dict):
        parts = {str(key): part for key, part in value.items()}
        return _keyed({key: _part(parts.get(key), part, done, mark) for key, part in tree.items()}, done)
    if isinstance(value, (list, tuple)) and isinstance(tree, list):
        return [_part(item, part, done, mark) for item, part in zip(value, tree, strict=True)]
    return _untyped(tree, done)


def _keyed(tree: dict[str, Any], done: Redacted) -> dict[str, Any]:
    return {_without_users(key, done.users) if key.startswith(("/", "~")) else key: part for key, part in tree.items()}


def _untyped(tree: object, done: Redacted, key: str = "") -> object:
    """Redact a value for which there is no specific rule, such as free text or the options of an engine."""
    if isinstance(tree, dict):
        return _keyed({name: _untyped(part, done, name) for name, part in tree.items()}, done)
    if isinstance(tree, list):
        return [_ssh_option(part, done) if key == "options" else _untyped(part, done) for part in tree]
    if isinstance(tree, str):
        return done.users.get(tree, tree) if key == "user" else _text(tree, done)
    return tree


def _environment(variables: dict[str, Any], done: Redacted) -> dict[str, Any]:
    return {
        name: [item and _variable(name, item, done) for item in value]
        if isinstance(value, list)
        else _variable(name, value, done)
        for name, value in variables.items()
    }


def _variable(name: str, value: object, done: Redacted) -> object:
    if not isinstance(value, str):
        return value
    if (name in NAMES or name.startswith(PREFIXES)) and not SECRET.search(name):
        return _text(value, done)
    done.variables.add(name)
    return LEFT_OUT


def _config_line(line: str, done: Redacted) -> str:
    """Redact a line of NCCL's configuration file, such as ``NCCL_DEBUG=INFO``."""
    match = CONFIG_LINE.match(line)
    return f"{match[1]}={_variable(match[1], match[2], done)}" if match else _text(line, done)


def _command(line: str, done: Redacted) -> str:
    """Replace the parts of a command line that might be private with "…"."""
    words = line.split()
    parts: list[str] = []
    for number, word in enumerate(words):
        option = words[number - 1].lstrip("-").replace("-", "_") if number and words[number - 1].startswith("-") else ""
        script = word.endswith(".py") and "=" not in word and "://" not in word
        if number == 0 or (option in OPTIONS and not word.startswith("-")) or script:
            parts.append(_text(word, done))
        elif word.startswith("-"):
            parts.append(_option(word, done))
        else:
            parts.append("…")
    if "…" in " ".join(parts):
        done.command_lines += 1
    return " ".join(parts)


NUMBER = re.compile(r"[\d.,:x-]{1,100}")
PLACE = re.compile(r"(?:tcp://)?(?:[\w.-]{1,255}|\[[0-9a-fA-F:]{2,45}\]):\d{1,5}")
PLACES = frozenset({"dist_url", "init_method", "rdzv_endpoint", "master_addr", "dist_init_addr", "address"})
"""Script and engine options whose values are addresses."""
LAUNCHERS = re.compile(
    r"(?:[\w./-]{0,200}/)?(?:python[\d.]*|torchrun|torch\.distributed\.(?:run|launch)|accelerate|launch|deepspeed|srun"
    r"|mpirun|mpiexec|env|vllm|serve|sglang\.launch_server|sglang|ray|start|uv|run|conda|numactl|nohup|time|bash|docker"
    r"|exec|composer|llamafactory-cli)"
)
"""Pattern for programs and subcommands that start a job.

The names of programs and subcommands that start a job contain no private data and are therefore kept.
"""


def _launch_line(line: str, done: Redacted) -> str:
    """Keep a launch command's programs, scripts, options, numbers and addresses, and replace the rest with "…"."""
    words = line.split()
    parts: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        option = before.lstrip("-").replace("-", "_") if before.startswith("-") and "=" not in before else ""
        variable = CONFIG_LINE.match(word)
        if variable is not None:
            parts.append(f"{variable[1]}={_variable(variable[1], variable[2], done)}")
        elif word.startswith("-"):
            parts.append(_valued(word, done))
        elif _is_plain(option, word):
            parts.append(_text(word, done))
        else:
            parts.append("…")
            done.command_lines += 1
    return " ".join(parts)


def _is_plain(option: str, value: str) -> bool:
    """Return whether a word of a launch command contains no private data.

    ``option`` is the option before the word, if any.
    """
    if NUMBER.fullmatch(value) or LAUNCHERS.fullmatch(value) or (value.endswith(".py") and "://" not in value):
        return True
    return option in OPTIONS or (option in PLACES and PLACE.fullmatch(value) is not None)


def _valued(word: str, done: Redacted) -> str:
    name, equals, value = word.partition("=")
    if not equals or _is_plain(name.lstrip("-").replace("-", "_"), value):
        return _text(word, done)
    done.command_lines += 1
    return f"{name}=…"


def _ssh_option(option: object, done: Redacted) -> object:
    """Replace an ssh option's value with "…", because values such as those of SetEnv might be private."""
    match = re.match(r"\s*(\w{1,40})[\s=]", option) if isinstance(option, str) else None
    done.command_lines += 1
    return f"{match[1]}=…" if match else "…"


def _option(word: str, done: Redacted) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        name = name[:2]
        return name if word == name else f"{name}…"
    if not equals:
        return _text(name, done)
    return f"{name}={_text(value, done) if name.lstrip('-').replace('-', '_') in OPTIONS else '…'}"


def _text(text: str, done: Redacted) -> str:
    """Return the string without user names and probable secrets."""
    result = _without_users(text, done.users)
    clean = without_secrets(result)
    if clean != result:
        done.texts.append(clean)
    return clean


def _without_users(text: str, users: dict[str, str]) -> str:
    """Replace each known user name that is a whole word or is delimited by "." or "-" within a word."""
    if not PROSE.search(text):
        return text
    with suppress(ValueError):
        ipaddress.ip_network(text, strict=False)
        return text

    def other(word: re.Match[str]) -> str:
        if word[0] in users:
            return users[word[0]]
        return "".join(users.get(part, part) for part in re.split(r"([.-])", word[0]))

    elsewhere = OTHER_HOME.sub(lambda match: f"{match[1]}{users.get(match[2], 'user')}", text)
    return WORD.sub(other, elsewhere)


_CLEANED: dict[Holds | None, Callable[[Any, Redacted], Any]] = {
    Holds.USER: lambda name, done: done.users.get(name, name),
    Holds.COMMAND: _command,
    Holds.LAUNCH_LINE: _launch_line,
    Holds.ENVIRONMENT: _environment,
    Holds.CONFIGURATION: lambda text, done: "\n".join(_config_line(line, done) for line in text.split("\n")),
    Holds.ACCESS: _untyped,
}
