from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.model.base import Unknown
from nccl_doctor.nccl.variables import LONGEST, parse_config, resolve
from nccl_doctor.nccl.versions import VersionNumbers
from nccl_doctor.snapshot.system import ConfigFile

OWN, NAMED, SYSTEM = "/home/ubuntu/.nccl.conf", "/opt/nccl.conf", "/etc/nccl.conf"


def test_a_config_file_is_read_without_any_kindness() -> None:
    text = '# A=1\n A=2\nB= 3 \nC="4"\r\nD\n=5\nE==eth0\nE=again\n#F=6'
    assert list(parse_config(text)) == [
        (" A", "2", 2),
        ("B", " 3 ", 3),
        ("C", '"4"\r', 4),
        ("E", "=eth0", 7),
        ("E", "again", 8),
    ]


@given(st.text())
def test_never_raises_and_cuts_what_is_too_long(text: str) -> None:
    for _, value, _ in parse_config(text + "=" + "é" * LONGEST):
        assert len(value.encode(errors="surrogateescape")) <= LONGEST


def found(
    hosts_file: dict[str, str],
    environment: dict[str, str],
    files: dict[str, str | None],
    version: VersionNumbers | None,
) -> dict[str, str]:
    configs = tuple(ConfigFile(path=path, text=text) for path, text in files.items())
    variables = resolve(hosts_file, environment, configs, version)
    assert not isinstance(variables, Unknown), variables.reason
    return {variable.value: variable.origin for variable in variables.values() if variable.name == "A"}


def test_the_first_definition_wins_and_says_where_it_stands() -> None:
    files: dict[str, str | None] = {OWN: "A=own\nA=again", SYSTEM: "B=x\nA=system"}
    assert found({"A": "job"}, {"A": "ssh"}, files, None) == {"job": "hosts file"}
    assert found({}, {"A": "ssh"}, files, None) == {"ssh": "environment"}
    assert found({}, {}, files, None) == {"own": f"{OWN}:1"}
    assert found({}, {}, {OWN: None, SYSTEM: files[SYSTEM]}, None) == {"system": f"{SYSTEM}:2"}


def test_nccl_conf_file_takes_the_place_of_the_own_file_from_2_23_4() -> None:
    files: dict[str, str | None] = {NAMED: "A=named", OWN: "A=own", SYSTEM: "A=system"}
    env = {"NCCL_CONF_FILE": NAMED}
    assert found({}, env, files, (2, 23, 4)) == {"named": f"{NAMED}:1"}
    assert found({}, env, files, (2, 22, 3)) == {"own": f"{OWN}:1"}
    assert found({}, {"NCCL_CONF_FILE": ""}, files, (2, 23, 4)) == {"own": f"{OWN}:1"}
    assert found({}, env, {NAMED: None, OWN: "A=own", SYSTEM: "A=system"}, (2, 23, 4)) == {"system": f"{SYSTEM}:1"}


def test_an_unknown_version_may_read_either_file() -> None:
    files = (
        ConfigFile(path=NAMED, text="A=named\nB=1"),
        ConfigFile(path=OWN, text="A=own\nC=1"),
        ConfigFile(path=SYSTEM, text="D=1"),
    )
    variables = resolve({}, {"NCCL_CONF_FILE": NAMED}, files, None)
    assert not isinstance(variables, Unknown)
    assert {name: variables[name].doubt is not None for name in "ABCD"} == {"A": True, "B": True, "C": True, "D": False}


def test_a_file_that_nobody_looked_at_is_unknown() -> None:
    assert isinstance(resolve({}, {"NCCL_CONF_FILE": "/elsewhere"}, (), (2, 27, 7)), Unknown)
