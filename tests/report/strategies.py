"""Reports with arbitrary text in every field that comes from outside."""

from __future__ import annotations

from hypothesis import strategies as st

from nccl_doctor.model.finding import CheckResult, Command, Consequence, Diagnosis, Fix, LogLine, Outcome, Severity
from nccl_doctor.model.report import HostSummary, Phase, Report

# What terminals obey or hide comes often, beside whatever else Unicode has (its surrogates can't enter the model).
NASTY = st.sampled_from(
    [
        "x" * 90,
        "\x1b[2J",
        "\x1b]0;x\x07",
        "\x9b1A",
        "\r",
        "\n",
        "\t",
        "\x00",
        "\u202e",
        "\u2066",
        "\u2028",
        "日本",
        "\ufffe",
    ]
)
TEXT = st.lists(NASTY | st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6).map("".join)
NAMES = st.lists(TEXT.filter(bool), max_size=4).map(tuple)
COMMANDS = st.builds(Command, host=st.none() | TEXT, command=TEXT)
FIXES = st.builds(Fix, summary=TEXT, needs_root=st.booleans(), commands=st.lists(COMMANDS, max_size=3).map(tuple))
DIAGNOSES = st.builds(
    Diagnosis,
    code=TEXT,
    name=TEXT,
    severity=st.sampled_from(Severity),
    hosts=NAMES,
    message=TEXT,
    evidence=st.lists(TEXT | st.builds(LogLine, file=TEXT, line=st.integers(1, 9999), text=TEXT), max_size=3).map(
        tuple
    ),
    facts=st.dictionaries(TEXT, TEXT | st.integers() | st.lists(TEXT, max_size=2), max_size=2),
    fix=FIXES,
    explains=st.lists(st.builds(Consequence, code=TEXT, name=TEXT, hosts=NAMES, message=TEXT), max_size=2).map(tuple),
    entities=st.none() | st.fixed_dictionaries({"rank": st.integers(0, 99) | TEXT}),
)
CHECKS = st.builds(
    CheckResult, code=TEXT, name=TEXT, category=TEXT, outcome=st.sampled_from(Outcome), reason=st.none() | TEXT
)
PHASES = st.sampled_from(["access", "all-reduce", "environment"])
OUTCOMES = st.sampled_from(["ok", "warning", "error", "unknown", "n/a", "skip"])
REPORTS = st.builds(
    Report,
    version=TEXT,
    command=TEXT,
    status=st.sampled_from(["ok", "warning", "error"]),
    complete=st.booleans(),
    title=TEXT,
    hosts=st.lists(st.builds(HostSummary, name=TEXT, address=TEXT), max_size=3).map(tuple),
    diagnoses=st.lists(DIAGNOSES, max_size=3).map(tuple),
    checks=st.lists(CHECKS, max_size=3).map(tuple),
    phases=st.lists(st.builds(Phase, name=PHASES, outcome=OUTCOMES, text=TEXT), max_size=2).map(tuple),
    timings=st.dictionaries(TEXT | st.just("total"), st.floats(0, 1e4), max_size=2),
    next_step=st.none() | TEXT,
)
