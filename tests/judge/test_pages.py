from __future__ import annotations

import errno
from collections import Counter

import pytest

from nccl_doctor.errors import UsageError
from nccl_doctor.judge.pages import find_pages
from nccl_doctor.model.documents import Page
from nccl_doctor.model.register import all_checks


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("NCD304", "port-in-use"),
        ("ncd304", "port-in-use"),
        ("304", "port-in-use"),
        ("port-in-use", "port-in-use"),
        ("EADDRINUSE", "port-in-use"),
        ("address already in use", "port-in-use"),
        ("No route to host", "no-route-to-host"),
        ("CUDA error: invalid device ordinal", "local-rank-invalid"),
        ("insufficient CUDA devices", "local-rank-invalid"),
        ("must be multiple of WORLD_SIZE", "world-size-mismatch"),
    ],
)
def test_a_page_is_found_by_what_people_have_before_them(asked: str, name: str) -> None:
    (page,) = find_pages(asked)
    assert isinstance(page, Page)
    assert page.name == name


def test_an_error_of_the_kernel_has_one_page() -> None:
    errors = Counter(error for check in all_checks() for error in check.errors)
    assert len(errors) >= 11
    assert set(errors.values()) == {1}
    assert all(hasattr(errno, error) for error in errors)


def test_a_category_and_a_slip_of_the_finger_are_no_page() -> None:
    with pytest.raises(UsageError, match='no diagnosis or topic is called "port-in-us"; did you mean "port-in-use"'):
        find_pages("port-in-us")
    with pytest.raises(UsageError, match='no diagnosis or topic is called "ports"'):
        find_pages("ports")
