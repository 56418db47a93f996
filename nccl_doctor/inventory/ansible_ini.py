"""An Ansible inventory in INI: ``[group]``, ``[group:children]``, ``[group:vars]``."""

from __future__ import annotations

import re
import shlex

from nccl_doctor.inventory.ansible import ARGUMENTS, WANTED, Inventory, Variables
from nccl_doctor.inventory.parsed import Sourced, SourceLocation
from nccl_doctor.text.hostlist import quoted

MAX_LINE = 1 << 16
SECTION = re.compile(r"\[([^\[\]:\s]+)(?::(\w+))?\]\s*(?:[#;].*)?")
_WITH_PORT = re.compile(r"((?:[^:\[\]]|\[[^\[\]]*\])+):([0-9]+)")


def read(text: str, place: SourceLocation) -> Inventory:
    """What an inventory says.

    Raises:
        HostsFileError: at the first line that is not as it has to be.
    """
    inventory = Inventory(place)
    name, kind = "ungrouped", ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line, here = raw.strip(), place.at(number)
        if not line or line[0] in "#;":
            continue
        if len(line) > MAX_LINE:
            raise here.error(f"a line of more than {MAX_LINE} characters")
        section = SECTION.fullmatch(line)
        if section:
            name, kind = section[1], section[2] or ""
            if kind not in ("", "vars", "children"):
                raise here.error(f"unknown section {quoted(line)}; allowed are [group], [group:vars], [group:children]")
            inventory.group(name, here)
        elif kind == "vars":
            inventory.groups[name].variables.update(_variable(line, here.noted(f"group {quoted(name)}")))
        elif kind == "children":
            child = _words(line, here)[0]
            inventory.group(child, here)
            inventory.groups[name].children[child] = here
        else:
            _host(line, here, name, inventory)
    return inventory


def _host(line: str, place: SourceLocation, group: str, inventory: Inventory) -> None:
    host, *words = _words(line, place)
    variables: Variables = {}
    with_port = _WITH_PORT.fullmatch(host)
    if with_port:
        host = with_port[1]
        variables["ansible_port"] = Sourced(with_port[2], place)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise place.error(
                f"{quoted(word)} is not understood; behind a host stand variables, as ansible_host=10.0.0.1"
            )
        if key in WANTED:
            variables[key] = Sourced(value, place)
    inventory.add(inventory.group(group, place), host, place, variables)


def _variable(line: str, place: SourceLocation) -> Variables:
    key, equals, value = (part.strip() for part in line.partition("="))
    if not equals:
        raise place.error(f"{quoted(line)} is not understood; a line here is variable=value")
    if key not in WANTED:
        return {}
    if "{{" in value:  # refused where it is used; its spaces say nothing
        return {key: Sourced(value, place)}
    words = _words(value, place) if value else []
    if key in ARGUMENTS:
        return {key: Sourced(words[0] if len(words) == 1 else value.partition(" #")[0], place)}
    if len(words) != 1:
        raise place.error(f"{key} must be one value; put a value with spaces in quotes")
    return {key: Sourced(words[0], place)}


def _words(line: str, place: SourceLocation) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise place.error("a quote or backslash without its partner; close it") from None
    if not words or not words[0]:
        raise place.error(f"{quoted(line)} holds no value")
    return words
