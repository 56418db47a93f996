from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.model.documents import CodeEntry, Codes, Page
from nccl_doctor.model.finding import Severity
from nccl_doctor.report.render import render
from nccl_doctor.text.shell import clean

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


def page(name: str, text: str) -> str:
    document = Page(code="NCD301", name=name, severity=Severity.ERROR, category="ports", text=text)
    return render("explain", "human", document)


def test_a_page_is_flowed_to_the_terminal_but_its_commands_stand() -> None:
    assert page("firewall-blocks-port", TEXT) == PAGE


@given(st.text(st.sampled_from("ab -1.\n\x1b\u202e日") | st.characters(exclude_categories=["Cs"]), max_size=300))
def test_whatever_the_page_it_is_safe(text: str) -> None:
    lines = page("x", text).split("\n")
    assert all(clean(line) == line for line in lines)
    assert all(cell_len(line) <= 80 for line in lines if not line.startswith("    "))


def test_codes_are_a_table() -> None:
    entries = (
        CodeEntry(code="NCD305", name="port-privileged", category="ports", severity=Severity.WARNING),
        CodeEntry(code="NCD701", name="allreduce-timeout", category="allreduce", severity=Severity.ERROR),
    )
    assert render("codes", "human", Codes(codes=entries)).split("\n") == [
        "code    name               severity  category",
        "NCD305  port-privileged    warning   ports",
        "NCD701  allreduce-timeout  error     allreduce",
        "",
    ]
