"""Takes out of a snapshot what should not travel with a bug report, and says what that was.

User names become "user1", "user2", …; values of variables stay only where their names are on an allow-list; of command
lines the program, the script and the names of options stay, and values of torchrun's own options. What a check needs
stays as it was, so that the verdict is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nccl_doctor.snapshot import Snapshot

LEFT_OUT = "(left out)"
PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCHELASTIC_", "CUDA_", "OMP_", "UCX_", "FI_")
NAMES = frozenset(
    {
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("NODE_RANK", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TP_SOCKET_IFNAME"),
    }
)
SECRET = re.compile(r"secret|passw|passphrase|token|credential|api_?key|access_?key|private_?key|auth", re.IGNORECASE)
"""In a variable's name: even one with an allowed beginning then keeps its value to itself."""

NOBODY = frozenset({"root", "nobody"})
HOME = re.compile(r"(?<=/home/)[A-Za-z_][\w.-]*|(?<=/Users/)[A-Za-z_][\w.-]*")
SHAPES = re.compile(
    r"\b(?:hf|ghp|gho|ghs|glpat|xox[abp]|sk|pk|rk)[_-][A-Za-z0-9_-]{12,}|\bgithub_pat_\w{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
"""Tokens known by their form: Hugging Face, GitHub, GitLab, Slack, OpenAI, Stripe, AWS, JSON web tokens, keys."""
IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
ASSIGNED = re.compile(
    r"(?P<name>[\w-]*(?:secret|passw|token|credential|api_?-?key|access_?-?key)[\w-]*)(?P<between>['\"]?\s*[=:]\s*['\"]?)"
    r"(?P<value>[^\s'\",;]+)",
    re.IGNORECASE,
)
"""``WANDB_API_KEY=…``, ``--token: …`` in any text: a log's last lines hold what a program printed."""
CONFIG_LINE = re.compile(r"^\s*([A-Za-z_]\w*)\s*=(.*)$")

OPTIONS = frozenset(
    {
        *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "max_restarts", "standalone"),
        *("rdzv_backend", "rdzv_endpoint", "local_addr", "local_rank", "m"),
    }
)
"""Options of Python and torchrun whose values are no secret; with "-" for "_" too."""


@dataclass
class Redacted:
    """What was left out so far; ``users`` maps a name to what stands for it."""

    users: dict[str, str] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    command_lines: int = 0
    texts: int = 0

    def __str__(self) -> str:
        names = sorted(self.variables)
        shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        told = (
            ("user names", len(self.users), ""),
            ("values of variables", len(names), f": {shown}"),
            ("arguments of command lines", self.command_lines, ""),
            ("secrets in texts", self.texts, ""),
        )
        return ", ".join(f"{what} ({count}{more})" for what, count, more in told if count)


def redact(snapshot: Snapshot) -> tuple[Snapshot, Redacted]:
    """The snapshot without names and secrets, and what that left out."""
    tree = snapshot.model_dump(mode="json", by_alias=True)
    done = Redacted()
    for name in sorted(set(_users(tree)) - NOBODY):
        done.users[name] = f"user{len(done.users) + 1}"
    return Snapshot.model_validate(_walk(tree, done, "")), done


def _users(tree: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Every user name in the tree: fields named so, and owners of home directories in paths."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "user" and isinstance(value, str):
                yield value
            yield from _users(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _users(value)
    elif isinstance(tree, str):
        yield from HOME.findall(tree)


def _walk(tree: Any, done: Redacted, key: str) -> Any:  # noqa: ANN401 - JSON
    if isinstance(tree, dict):
        return {name: _field(name, value, done, tree) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_walk(value, done, key) for value in tree]
    return _text(tree, done) if isinstance(tree, str) else tree


def _field(name: str, value: Any, done: Redacted, whole: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if name == "user" and isinstance(value, str):
        return done.users.get(value, value)
    if name == "env" and isinstance(value, dict):
        return {variable: _variable(variable, text, done) for variable, text in value.items()}
    if name == "differing" and isinstance(value, dict):
        return {v: [None if one is None else _variable(v, one, done) for one in both] for v, both in value.items()}
    if name in ("command", "parent") and isinstance(value, str) and "pid" in whole:
        return _command(value, done)
    if name == "text" and isinstance(value, str) and set(whole) == {"path", "text"}:
        return "\n".join(_config_line(line, done) for line in value.split("\n"))
    return _walk(value, done, name)


def _allowed(variable: str) -> bool:
    return (variable in NAMES or variable.startswith(PREFIXES)) and not SECRET.search(variable)


def _variable(name: str, value: Any, done: Redacted) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        return value
    if _allowed(name):
        return _text(value, done)
    done.variables.add(name)
    return LEFT_OUT


def _config_line(line: str, done: Redacted) -> str:
    """A line of NCCL's configuration file, which sets variables."""
    match = CONFIG_LINE.match(line)
    return f"{match[1]}={_variable(match[1], match[2], done)}" if match else _text(line, done)


def _command(line: str, done: Redacted) -> str:
    """A command line with what may be told of it."""
    words = line.split()
    told: list[str] = []
    for number, word in enumerate(words):
        option = words[number - 1].lstrip("-").replace("-", "_") if number and words[number - 1].startswith("-") else ""
        if number == 0 or (option in OPTIONS and not word.startswith("-")) or _is_script(word):
            told.append(_text(word, done))
        elif word.startswith("-"):
            told.append(_option(word, done))
        else:
            told.append("…")
    if "…" in " ".join(told):
        done.command_lines += 1
    return " ".join(told)


def _is_script(word: str) -> bool:
    return word.endswith(".py") and "=" not in word and "://" not in word


def _option(word: str, done: Redacted) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        name = name[:2]
        return name if word == name else f"{name}…"
    if not equals:
        return _text(name, done)
    return f"{name}={_text(value, done) if name.lstrip('-').replace('-', '_') in OPTIONS else '…'}"


def _text(text: str, done: Redacted) -> str:
    """Any other text, without users' names where they can be told from words, and without what looks like a secret."""
    found = HOME.sub(lambda match: done.users.get(match[0], match[0]), text)
    for name, other in done.users.items():
        found = re.sub(rf"(?<![\w.-]){re.escape(name)}(?=@)", other, found)
    clean = SHAPES.sub(LEFT_OUT, IN_URL.sub(f"{LEFT_OUT}@", found))
    clean = ASSIGNED.sub(lambda match: f"{match['name']}{match['between']}{LEFT_OUT}", clean)
    if clean != found:
        done.texts += 1
    return clean
