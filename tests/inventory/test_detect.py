from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import files
from nccl_doctor.inventory.build import build
from nccl_doctor.inventory.sources import MAX_BYTES, decode
from tests.inventory.conftest import ELSEWHERE, Understand


@pytest.mark.parametrize(
    "text",
    [
        "hosts: [a, b]",
        "---\n# comment\nhosts:\n- a\n- b\n",
        "env:\n  hosts: x\nhosts:\n- a\n- b",
        '{"hosts": ["a", "b"]}',
        '"hosts":\n- a\n- b',
        "a\nb\n",
        "a slots=8\nb slots=8",
        "a:8\r\nb:8\r\n",
        "[g]\na\nb",
        "# x\n\na\n[g]\nb",
        "a ansible_user=root\nb",
        "all:\n  hosts: {a: , b: }",
        "gpu:\n  hosts:\n    a:\n    b:\n",
        "\ufeffhosts: [a, b]",
    ],
)
def test_each_kind_of_file_is_told_by_its_content(understand: Understand, text: str) -> None:
    assert [node.name for node in understand(decode(text.encode(), "f")).nodes] == ["a", "b"]


BIG = MAX_BYTES // 4

PIECES = [
    *(
        "hosts:",
        "\n",
        "\n  ",
        "\n- ",
        " ",
        "\t",
        "[",
        "]",
        "{",
        "}",
        ":",
        ": ",
        ",",
        "- ",
        "a",
        "b",
        "node[1-3]",
        "n[01:04]",
    ),
    *(
        "10.0.0.1",
        "env: ",
        "ssh: ",
        "all:",
        "children:",
        "vars:",
        "[all]\n",
        "\n[g]\n",
        "\n[g:vars]\n",
        "\n[g:children]\n",
    ),
    *(
        "g",
        " slots=8",
        " ansible_host=",
        "ansible_host: ",
        "{{",
        "&x ",
        "*x",
        "!!str ",
        "!",
        "%YAML 1.2",
        "---",
        "...",
        "|",
        ">",
    ),
    *(
        "'",
        '"',
        "\\",
        "#",
        "? ",
        "=",
        "@",
        "\r",
        "\x85",
        "\ufeff",
        "name: ",
        "address: ",
        "cuda_visible_devices: ",
        "0,1",
        "1",
    ),
    *("null", "~", '"\\ud800"', '"\\x00"', "<<: ", "%TAG ! a:\n", "\u2028", "-w", "é", "\x00", "\x1b"),
]


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(PIECES), max_size=30).map(lambda pieces: "".join(pieces).encode())
    | st.lists(st.sampled_from(PIECES), max_size=30).map(lambda pieces: ("hosts:" + "".join(pieces)).encode())
    | st.binary(max_size=100)
)
def test_any_bytes_are_understood_or_refused_in_a_sentence(data: bytes) -> None:
    try:
        cluster = build(files.read(decode(data, "f"), "f"), (), ELSEWHERE)
    except DoctorError as error:
        message = str(error)
        assert message.startswith("f:")
        assert message.isprintable()
    else:
        assert [node.node_rank for node in cluster.nodes] == list(range(len(cluster.nodes)))
        assert len({node.name for node in cluster.nodes}) == len(cluster.nodes)
        assert cluster.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        "[" * BIG,
        "hosts: " + " " * (BIG - 20) + "x",
        'hosts: ["' + "a" * (BIG - 20),
        "a," * (BIG // 2),
        "a" + "[1]" * (BIG // 4),
        "a[" + "1," * (BIG // 2 - 10) + "1]",
        "a slots" + " " * (BIG - 20) + "x",
        "[g]\na b='" + "x" * (BIG - 20),
    ],
    ids=["nested", "spaces", "quote", "commas", "brackets", "ranges", "slots", "word"],
)
def test_a_big_file_takes_no_more_than_moments(text: str) -> None:
    # Each is refused in less than a second; a reader of quadratic time would need hours.
    with pytest.raises(DoctorError):
        files.read(decode(text.encode(), "f"), "f")
