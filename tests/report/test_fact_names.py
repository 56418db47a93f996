from __future__ import annotations

import pytest

from nccl_doctor.model.documents import Change, DiagnosisChanges, Difference
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.screens import render_diff


@pytest.mark.parametrize(
    ("what", "shown"),
    [("node.env.NCCL_DEBUG", "node env NCCL_DEBUG"), ("gpu_driver.open_kernel", "gpu driver open kernel")],
)
def test_a_variable_keeps_its_name_and_a_field_its_words(what: str, shown: str) -> None:
    change = Change(what=what, before="a", after="b", hosts=("node1",))
    found = Difference(changes=(change,), diagnoses=DiagnosisChanges())
    assert f"{shown}: a -> b" in render_diff(found, RenderOptions())
