"""Lines to paste: whatever stands in their holes, a real shell runs what the template says and nothing else."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nccl_doctor
from nccl_doctor.model.finding import export, on
from nccl_doctor.text.shell import line, script, word

PLAIN = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(lambda text: not text.startswith("-"))


@given(PLAIN, PLAIN)
def test_a_hole_is_one_word_or_a_part_of_one(first: str, second: str) -> None:
    made = line(
        "tool --name={first} {second} | tee {*both} >> /tmp/x", first=first, second=second, both=[first, second]
    )
    assert made
    words = shlex.split(made.text)
    assert words == ["tool", f"--name={first}", second, "|", "tee", first, second, ">>", "/tmp/x"]


@pytest.mark.parametrize("text", ["a\nreboot", "a\rb", "\x1b[31m", "\u202egnp.exe", "\ud800", "-rf", "--config=x"])
def test_what_can_not_be_pasted_makes_no_line(text: str) -> None:
    assert line("rm {file}", file=text) is None
    assert line("rm {*files}", files=["ok", text]) is None
    assert on("node1", line("true"), line("rm {file}", file=text)) == ()
    assert (line("rm --file={file}", file=text) is None) == (not text.isprintable())


def test_lines_and_numbers_fill_a_hole_as_they_are() -> None:
    option = line("-t {table}", table="nat")
    assert str(
        line("iptables {option} {nothing} -I {port} {*ports}", option=option, nothing=script(""), port=1, ports=[2, 3])
    ) == ("iptables -t nat -I 1 2 3")
    assert line("iptables {option}", option=line("{bad}", bad="\n")) is None
    assert str(script("for i in {all}; do {one}; done", all=[script("1"), script("2")], one=script("$i"))) == (
        "for i in 1 2; do $i; done"
    )
    assert str(line("ip route add {to}", to=ip_address("fd00::1"))) == "ip route add fd00::1"


PACKAGE = Path(nccl_doctor.__file__).parent
OWN = {"line": "shell.py", "script": "shell.py", "Line": "shell.py", "Command": "finding.py"}
"""Who makes these: nobody else calls a constructor, and a template is a text of the source."""


def test_commands_and_lines_are_made_in_one_place_and_templates_are_constants() -> None:
    made = dict.fromkeys(OWN, 0)
    for path in PACKAGE.rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name, owner = _called(call.func)
            if (owner == "Command" or name == "Command" or (name == "Line" and _from_shell(path))) and (
                path.name != OWN.get(name)
            ):
                raise AssertionError(f"{path}:{call.lineno} makes a {name}")
            is_template = name in ("line", "script") and (not owner or owner == "shell") and _from_shell(path)
            if is_template and not (call.args and _is_constant(call.args[0], path)):
                raise AssertionError(f"{path}:{call.lineno}: a template that is not written out")
            made[name] = made.get(name, 0) + 1
    assert made["Command"] == 1
    assert made["line"] > 20


QUOTING = {
    "crew/start.py": "the program that starts the probe",
    "probe/facts/software.py": "the program that a login shell is asked to run",
    "transport/containers/transport.py": "the program that a container's shell runs",
    "transport/ssh/openssh.py": "ssh's own ProxyCommand",
}
"""Who quotes for a shell that nobody pastes into."""

PROSE = {
    "act/record.py": "with the words that named the hosts, quoted when the record was written",
    "checks/interfaces/interface_down.py": "evidence, with what the kernel answered",
    "crew/answers.py": "a sentence that begins with our name",
    "inventory/last_check.py": "named in a sentence, with the user's own file",
    "probe/facts/firewall.py": "a sentence that begins with sudo",
    "probe/guard.py": "a sentence that begins with our name",
}
"""Where a text with something put into it begins like a command, and is none to paste."""

COMMAND = re.compile(
    r"(?:sudo|export|unset|eval|nccl-doctor|nsenter|sysctl|systemctl|ip|iptables|ip6tables|nft|firewall-cmd|ufw|kill|echo"
    r"|printf|ss|ssh|ssh-\w+|chmod|mount|scontrol|kubectl|docker) [\w-]"
)


def test_no_command_is_put_together_by_hand() -> None:
    found: dict[str, list[str]] = {"quoted": [], "formatted": []}
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node.func) in (("join", "shlex"), ("quote", "shlex")):
                found["quoted"] += [] if name == "text/shell.py" else [name]
            if isinstance(node, ast.JoinedStr | ast.BinOp) and COMMAND.match(_written(node)):
                found["formatted"].append(name)
    assert {how: set(names) for how, names in found.items()} == {"quoted": set(QUOTING), "formatted": set(PROSE)}


def _written(text: ast.expr) -> str:
    """What stands in the source of a text that something is put into, the places where it is left out."""
    if isinstance(text, ast.BinOp):
        return str(text.left.value) if isinstance(text.left, ast.Constant) else ""
    parts = text.values if isinstance(text, ast.JoinedStr) else []
    return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant)).lstrip()


def _called(function: ast.expr) -> tuple[str, str]:
    """The name that is called, and what stands before its dot."""
    if isinstance(function, ast.Attribute):
        return function.attr, function.value.id if isinstance(function.value, ast.Name) else "?"
    return (function.id if isinstance(function, ast.Name) else "?"), ""


def _from_shell(path: Path) -> bool:
    return "nccl_doctor.text.shell import" in path.read_text() or "import shell" in path.read_text()


def _is_constant(template: ast.expr, path: Path) -> bool:
    if isinstance(template, ast.IfExp):
        return _is_constant(template.body, path) and _is_constant(template.orelse, path)
    if isinstance(template, ast.Name):
        body = ast.parse(path.read_text())
        found = [
            node.value
            for node in ast.walk(body)
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == template.id for target in node.targets)
        ]
        return bool(found) and all(isinstance(value, ast.Constant) for value in found)
    return isinstance(template, ast.Constant)


def test_variables_have_names() -> None:
    assert str(export("NCCL_SOCKET_IFNAME", "=eno1")) == "export NCCL_SOCKET_IFNAME='=eno1'"
    assert export("X;reboot", "1") is None


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30))
def test_every_shell_reads_a_word_back(text: str) -> None:
    assert shlex.split(word(text)) == [text]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_real_shell_reads_words_back(shell: str) -> None:
    texts = ["$(reboot)", "`id`", "a'b", 'a"b', "a\\b", "~root", "=ls", "*", "a=b c", "x;y", "&", "!!", "{a,b}", "é"]
    told = subprocess.run(
        [shell, "-c", f"printf '%s\\0' {' '.join(map(word, texts))}"], capture_output=True, check=True
    ).stdout
    assert told.decode().split("\0")[:-1] == texts
