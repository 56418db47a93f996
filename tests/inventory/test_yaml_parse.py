from __future__ import annotations

import pytest

from nccl_doctor.errors import HostsFileError
from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.inventory.yaml_tree import Listing, Mapping, Scalar, parse
from tests.inventory.conftest import Refusal


def test_values_stay_as_written() -> None:
    tree = parse("a: [0x1F, yes, '1', 010]\n", SourceLocation("f"))
    assert isinstance(tree, Mapping)
    values = tree.pairs[0][1]
    assert isinstance(values, Listing)
    assert [(v.text, v.plain) for v in values.items if isinstance(v, Scalar)] == [
        ("0x1F", True),
        ("yes", True),
        ("1", False),
        ("010", True),
    ]


def test_comments_alone_are_no_document() -> None:
    with pytest.raises(HostsFileError, match=r"^f: the file contains only comments$"):
        parse("# nothing", SourceLocation("f"))


BOMB = "a: &a [x,x]\n" + "".join(f"{b}: &{b} [*{a},*{a}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts:\n\t- a", ":2: a tab stands where YAML allows only spaces; indent with spaces"),
        ("hosts: [a]\nenv: *x", ':2: aliases ("*name") are not supported; write the value out'),
        ("hosts: &x [*x]", ':1: aliases ("*name") are not supported; write the value out'),
        (
            BOMB,
            ':1: unknown key "a"; allowed are master_addr, master_port, python, ssh, inside, env, nproc_per_node, same, engine, hosts',
        ),
        (
            "hosts: !!python/object/apply:os.system [x]",
            ':1: the YAML tag "tag:yaml.org,2002:python/object/apply:os.system" is not supported; write the plain value',
        ),
        ("hosts:\n- !x a", ':2: the YAML tag "!x" is not supported; write the plain value'),
        ("hosts: [a]\n---\nb: c", ':2: a second document begins; one is allowed, so leave out the "---" between them'),
        ("[" * 100_000, ":1: nested deeper than 32 levels"),
        ("{" * 100_000, ":1: nested deeper than 32 levels"),
        ("- " * 100_000, ":1: nested deeper than 32 levels"),
        (
            "hosts:\n- a: b\n - c",
            (
                ":3: not valid YAML: expected <block end>, but found '<block sequence start>' while parsing a block "
                "mapping that begins in line 1; indent all lines of one level alike"
            ),
        ),
        (
            "hosts: [node[1-3]]",
            (
                ":1: not valid YAML: expected ',' or ']', but got '['; "
                "between [ ] or { } a value that holds brackets or "
                "a comma needs quotes"
            ),
        ),
        ("hosts: [@a]", ":1: not valid YAML: found character '@' that cannot start any token; put the value in quotes"),
        ('hosts: ["a]', ":1: not valid YAML: found unexpected end of stream"),
        ("%YAML 1.3\n---\nhosts: [a]", ": not valid YAML: version minor part can only be 2 or 1, got (1, 3)"),
        ("hosts:\n- a\x07", ":2: not valid YAML: special characters are not allowed"),
        ("- a\n- b", ':1: a hosts file is a mapping; write "hosts:" and below it each host with "- " in front'),
        ("---\n# nothing", ':2: a hosts file is a mapping; write "hosts:" and below it each host with "- " in front'),
    ],
)
def test_refuses(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == "hosts.yaml" + message
