from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.model import Severity
from nccl_doctor.report.page import codes, page
from nccl_doctor.report.safe import clean

TEXT = """A rule on a host drops the master port.

What it means: all ranks connect to the master port, which the first host of the list opens; where a rule drops it they
wait until they time out.

How we know:

- timed out: something drops the packets without a word: a firewall's DROP, a security group of the cloud's
  network, an ACL.
- refused: nobody listens.

1. Look.
2. Open it:

    firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3 --reload
      --indented

References: firewalld.zone(5)."""

PAGE = """\
NCD301 firewall-blocks-port                                       error, ports

A rule on a host drops the master port.

What it means: all ranks connect to the master port, which the first host of
the list opens; where a rule drops it they wait until they time out.

How we know:

- timed out: something drops the packets without a word: a firewall's DROP, a
  security group of the cloud's network, an ACL.
- refused: nobody listens.

1. Look.
2. Open it:

    firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2 --add-source=10.0.0.3 --reload
      --indented

References: firewalld.zone(5).
"""


def test_a_page_is_flowed_to_the_terminal_but_its_commands_stand() -> None:
    assert page("NCD301", "firewall-blocks-port", Severity.ERROR, "ports", TEXT) == PAGE


@given(st.text(st.sampled_from("ab -1.\n\x1b\u202e日") | st.characters(exclude_categories=["Cs"]), max_size=300))
def test_whatever_the_page_it_is_safe(text: str) -> None:
    lines = page("NCD301", "x", Severity.ERROR, "ports", text).split("\n")
    assert all(clean(line) == line for line in lines)
    assert all(cell_len(line) <= 80 for line in lines if not line.startswith("    "))


@dataclass(frozen=True)
class Entry:
    code: str
    name: str
    category: str
    severity: Severity


def test_codes_are_a_table_by_code() -> None:
    entries = [
        Entry("NCD701", "allreduce-timeout", "allreduce", Severity.ERROR),
        Entry("NCD305", "port-privileged", "ports", Severity.WARNING),
    ]
    assert codes(entries).split("\n") == [
        "code    name               severity  category",
        "NCD305  port-privileged    warning   ports",
        "NCD701  allreduce-timeout  error     allreduce",
        "",
    ]
