"""NCCL's warnings: how many have a meaning, and that each is found again in the text that it prints."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.model.register import all_checks
from nccl_doctor.nccl.messages import Meaning, catalogue, meaning
from tests.each import each
from tests.nccl.printed import printed


def test_at_least_four_of_five_have_a_meaning() -> None:
    nvidia = [found for found in catalogue() if found.first]
    known = [found for found in nvidia if found.name != "nccl-unknown-error"]
    assert len(nvidia) > 1000
    assert len(known) / len(nvidia) >= 0.8


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[FATAL ERROR]: AMD SMI failure: AMDSMI_STATUS_NOT_INIT at line: 58 in file: amdsmi_wrap.cc", "cuda-error"),
        ("[FATAL ERROR]: amdsmi_lib: 0000:c1:00.0 device index not found", "gpu-count-low"),
        ("[FATAL ERROR]: RCCL encountered a communication fatal error (detected in ncclIbTest)", "ib-fault"),
        ("[FATAL ERROR]: HSA_NO_SCRATCH_RECLAIM=1 must be set", "env-bad-value"),
        ("src/misc/msccl/msccl_parser.cc:12 NCCL WARN MSCCL: thread block 4 is missing", "nccl-unknown-error"),
        (
            "src/init.cc:12 NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance!",
            "",
        ),
    ],
)
def test_words_of_rccl(line: str, name: str) -> None:
    verdict = diagnose([LogSource("x", [f"n1:71:71 [0] {line}\n".encode()])])
    assert [(cause.name, cause.events[0].prefix.level) for cause in verdict.causes] == (
        [(name, "WARN")] if name else []
    )


def test_names_exist() -> None:
    names = {found.name for found in catalogue()}
    assert names <= {check.name for check in all_checks()} | {"benign"}


@each(catalogue(), lambda found: found.template[:40])
def test_falls_to_a_diagnosis_or_is_benign(found: Meaning) -> None:
    text = printed(found.template)
    verdict = diagnose([LogSource("x", [f"n1:1:2 [0] a.cc:1 NCCL WARN {text}\n".encode()])])
    names = [cause.name for cause in verdict.causes]
    if found.name == "benign":
        assert names == []
    else:
        assert len(names) == 1


def test_the_longer_template_wins() -> None:
    text = "Error while creating shared memory segment /dev/shm/nccl-x (size 4), error: No space left on device (28)"
    found = meaning(text)
    assert found is not None
    assert found.template.endswith("error: %s (%d)")
    assert (found.first, found.last) == ("2.22.3", "2.30.7")


def test_other_text_has_none() -> None:
    assert meaning("loss 0.5 at step 3") is None
