from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.base import Holds, marks
from nccl_doctor.nccl.variables import NCCL2_SWITCH, TORCH_VALUES
from nccl_doctor.probe.facts import software
from nccl_doctor.snapshot.hang import HangSnapshot
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.redact import Redacted, clean, redact
from nccl_doctor.text.secrets import LEFT_OUT, without_secrets
from nccl_doctor.transport.ssh.failures import Login, SshDestination, auth_failed
from tests.checks.snapshots import healthy, patched


def text(patch: dict[str, Any]) -> str:
    return redact(patched(patch))[0].model_dump_json(by_alias=True)


def holder(command: str, user: str = "alice") -> dict[str, Any]:
    process = {
        "pid": 4711, "ppid": 1, "user": user, "command": command, "started": 0.0, "age_s": 1.0, "orphan": True,
        "own": False,
    }  # fmt: skip
    taken = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener", "holders": [process]}
    return {"hosts": {"node1": {"facts": {"master_port": taken}}}}


COMMANDS = {
    "python -u /home/alice/run/train.py --token hush --lr 0.1": "python -u /home/user1/run/train.py --token … --lr …",
    "/opt/py/bin/python -m torch.distributed.run --nnodes=2 --master_addr 10.0.0.1 train.py --key=hush": (
        "/opt/py/bin/python -m torch.distributed.run --nnodes=2 --master_addr 10.0.0.1 train.py --key=…"
    ),
    "mysql -phush": "mysql -p…",
    "env API=hush python": "env … …",
    "curl https://alice:hush@example.org/x.py": "curl …",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_of_a_command_line_program_script_and_options_stay(command: str) -> None:
    kept, done = redact(patched(holder(command)))
    tree = kept.model_dump(mode="json", by_alias=True)
    (told,) = tree["hosts"][0]["facts"]["master_port"]["holders"]
    assert told["command"] == COMMANDS[command]
    assert told["user"] == "user1"
    assert done.command_lines == 1
    assert "hush" not in kept.model_dump_json()


def test_the_variables_that_a_host_reports_keep_their_values() -> None:
    """Otherwise a saved snapshot would be judged by other values than the hosts' own."""
    prefixes = {*software.PREFIXES, "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_"} - {"TORCH_"}
    names = [*software.NAMES, NCCL2_SWITCH, *TORCH_VALUES, *(f"{prefix}ANYTHING" for prefix in prefixes)]
    kept = redact(patched({"hosts": {"node1": {"facts": {"env": dict.fromkeys(names, "7")}}}}))[0]
    facts = kept.hosts[0].facts
    assert facts is not None
    assert facts.env == dict.fromkeys(sorted(names), "7")


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "NCCL_AUTH_TOKENS", "NCCL_IB_DISABLE"])
def test_a_value_that_was_left_out_is_not_judged(name: str) -> None:
    report = judge(patched({"hosts": {"node2": {"facts": {"env": {name: LEFT_OUT}}}}}), "check")
    found = [one.name for one in report.diagnoses if one.name in ("env-bad-value", "env-mismatch")]
    assert found == []


def test_users_are_numbered_alike_everywhere_and_root_stays() -> None:
    patch = holder("python x.py")
    patch["hosts"]["node2"] = {"facts": {"identity": {"user": "alice"}, "python": {"prefix": "/home/alice/venv"}}}
    patch["hosts"]["node3"] = {"facts": {"identity": {"user": "root"}}, "node": {"access": {"ssh": {"user": "bob"}}}}
    kept, done = redact(patched(patch))
    assert done.users == {"alice": "user1", "bob": "user2", "ubuntu": "user3"}
    users = [host["facts"]["identity"]["user"] for host in kept.model_dump()["hosts"]]
    assert users == ["user3", "user1", "root"]
    assert "/home/user1/venv" in kept.model_dump_json()


def test_variables_stay_where_their_names_are_allowed() -> None:
    env = {
        "NCCL_DEBUG": "INFO",
        "WANDB_API_KEY": "hush",
        "NCCL_MY_TOKEN": "hush",
        "TORCH_X": "hush",
        "FI_PROVIDER": "efa",
    }
    kept, done = redact(patched({"hosts": {"node1": {"node": {"env": env}, "facts": {"env": env}}}}))
    assert kept.hosts[0].node.env == {
        "NCCL_DEBUG": "INFO",
        "WANDB_API_KEY": LEFT_OUT,
        "NCCL_MY_TOKEN": LEFT_OUT,
        "TORCH_X": LEFT_OUT,
        "FI_PROVIDER": "efa",
    }
    assert done.variables == {"WANDB_API_KEY", "NCCL_MY_TOKEN", "TORCH_X"}
    assert "values of variables (3: NCCL_MY_TOKEN, TORCH_X, WANDB_API_KEY)" in str(done)


def test_a_configuration_file_keeps_its_lines() -> None:
    files = [{"path": "/etc/nccl.conf", "text": "# note\nNCCL_DEBUG=INFO\nPASSWORD = hush\n"}]
    kept, _ = redact(patched({"hosts": {"node1": {"facts": {"config_files": files}}}}))
    (file,) = kept.model_dump()["hosts"][0]["facts"]["config_files"]
    assert file["text"] == f"# note\nNCCL_DEBUG=INFO\nPASSWORD={LEFT_OUT}\n"


SECRETS = {
    "export HF_TOKEN=hf_AbCdEfGhIjKlMnOp": "hf_AbCdEfGhIjKlMnOp",
    "login with ghp_0123456789abcdefghij": "ghp_0123456789abcdefghij",
    "AKIAABCDEFGHIJKLMNOP was refused": "AKIAABCDEFGHIJKLMNOP",
    '{"api_key": "abcd1234"}': "abcd1234",
    "git clone https://me:pw12345@example.org/r.git": "pw12345",
    "password: hunter2": "hunter2",
    "Authorization: Bearer abcDEF123.ghi": "abcDEF123",
    "curl -H 'authorization: token abcdefgh1234' x": "abcdefgh1234",
    "wandb login --relogin 0123456789abcdef0123456789": "0123456789abcdef",
    "https://x.blob.core.windows.net/c?sv=2020&sig=aB%2Bcdefgh123%3D&se=1": "aB%2B",
    "https://s3.amazonaws.com/x?X-Amz-Signature=0123abcd0123abcd&x=1": "0123abcd",
    "AccountName=a;AccountKey=Zm9vYmFyYmF6cXV4==;EndpointSuffix=x": "Zm9vYm",
    "the key AIzaSyA-0123456789_abcdefghijklmnopqrstu is invalid": "AIzaSy",
    "mysql -u root -phush123 runs": "hush123",
    "password: 'two words'": "words",
    '{"password": "two \\"words\\" here", "a": 1}': "words",
    "train.py --password hunter2": "hunter2",
    "nvapi-abcdefghij0123456789 was refused": "abcdefghij0",
    "xx-----BEGIN RSA PRIVATE KEY-----\nMIIEow": "MIIEow",
}
FINE = (
    "token bucket algorithm",
    "basic authentication failed",
    "the tokenizer was loaded: /x/y.json",
    "number of tokens per second: 12345",
    "NCCL INFO comm 0x7f rank 0 nranks 8 - Init COMPLETE",
)


@pytest.mark.parametrize("line", SECRETS)
def test_a_log_line_loses_what_looks_like_a_secret(line: str) -> None:
    assert SECRETS[line] not in text({"smoke": {"output": {"node1": [line]}}})


def test_what_only_sounds_like_a_secret_stays() -> None:
    assert [without_secrets(line) for line in FINE] == list(FINE)


SEEDS = ("secret", "token-", "a", "eyJ-", "sk-", "://", "mysql -", "Bearer ", "-----BEGIN ", "password='", "=:", "_-")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_costs_in_proportion_to_its_length(seed: str) -> None:
    """Eight times the text takes nowhere near the 64 times of a square, however busy the machine is."""

    def cost(length: int) -> float:
        text = (seed * length)[:length]
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            without_secrets(text)
            best = min(best, time.thread_time() - began)
        return best

    assert cost(32_000) < 30 * max(cost(4_000), 1e-3)


SENTENCES = {
    "refused the login of user alice": "refused the login of user user1",
    "alice's job in /scratch/alice/run and /users/alice": "user1's job in /scratch/user1/run and /users/user1",
    "alice@node1: /tmp/alice-run3/alice.log, by alice.": "user1@node1: /tmp/user1-run3/user1.log, by user1.",
    "/scratch/carol/x.py": "/scratch/user/x.py",
    "malice is no alicez": "malice is no alicez",
}


@pytest.mark.parametrize("line", SENTENCES)
def test_a_known_user_goes_wherever_the_name_stands(line: str) -> None:
    patch = holder("python x.py", "alice")
    patch["hosts"]["node1"]["facts"]["identity"] = {"user": "alice"}
    kept, _ = redact(patched({**patch, "smoke": {"output": {"node1": [line]}}}))
    assert SENTENCES[line].replace("user1", "USER") in re.sub(r"user[0-9]+", "USER", kept.model_dump_json())


LOGINS = {
    "refused": Login(offered=("key",), methods=("publickey",)),
    "barred": Login(barred=True, message="dora, go away"),
    "partial": Login(partial=True),
    "aborted": Login(aborted=True),
    "no keys": Login(methods=("password",)),
}


@pytest.mark.parametrize("login", LOGINS)
def test_a_user_that_only_a_refused_login_names_is_known(login: str) -> None:
    refused = auth_failed(SshDestination("node2", "10.0.0.2", 22, "dora"), LOGINS[login]).failure
    assert "dora" in refused.detail
    away = {"facts": None, "failure": refused.model_dump(mode="json", by_alias=True)}
    kept, done = redact(patched({"hosts": {"node2": away}}))
    assert "dora" in done.users
    assert "dora" not in kept.model_dump_json()


@pytest.mark.parametrize("user", ["physical", "timed", "tcp", "accept", "eno1", "python", "node1", "up"])
def test_a_user_with_the_name_of_a_fact_changes_no_verdict(user: str) -> None:
    snapshot = patched({"hosts": {"node1": {"facts": {"identity": {"user": user}}}}})
    assert judge(redact(snapshot)[0], "check").checks == judge(snapshot, "check").checks


@pytest.mark.parametrize("patch", [{}, {"cluster": {"master_addr": "127.0.0.1"}}])
def test_the_verdict_is_the_same(patch: dict[str, Any]) -> None:
    snapshot = patched(
        {**patch, "hosts": {"node1": {"node": {"env": {"NCCL_TYPO": "1"}}, "facts": {"env": {"A": "b"}}}}}
    )
    before, after = judge(snapshot, "check"), judge(redact(snapshot)[0], "check")
    assert before.checks == after.checks
    assert [d.code for d in before.diagnoses] == [d.code for d in after.diagnoses]


@given(st.text(), st.dictionaries(st.text(max_size=12), st.text(), max_size=4), st.from_regex(r"[a-z][a-z0-9-]{0,8}"))
def test_no_text_breaks_it(line: str, env: dict[str, str], user: str) -> None:
    patch = holder(line, user.strip())
    patch["hosts"]["node2"] = {"facts": {"env": env}}
    redact(patched({**patch, "smoke": {"output": {"node1": [line]}}}))


LINE = (
    "SECRET_X=s3cr3t torchrun --nnodes=2 --nproc_per_node 8 --rdzv_id=s3cr3t --rdzv_endpoint=node1:29400 train.py "
    "s3cr3t --auth bob:s3cr3t --wandb-key s3cr3t --name=s3cr3t --batch 64"
)


def test_a_launch_line_keeps_what_is_judged_and_options_of_ssh_their_names() -> None:
    options = ["SetEnv=TOK=s3cr3t", "ProxyCommand=nc -l s3cr3t", "Port 22", "s3cr3t"]
    cluster = {"line": LINE, "access": {"ssh": {"options": options}}}
    kept, _ = redact(patched({"cluster": cluster}))
    text = kept.model_dump_json()
    assert "s3cr3t" not in text
    assert kept.cluster.line == (
        "SECRET_X=(left out) torchrun --nnodes=2 --nproc_per_node 8 --rdzv_id=… --rdzv_endpoint=node1:29400 train.py "
        "… --auth … --wandb-key … --name=… --batch 64"
    )
    assert kept.cluster.access == {"ssh": {"options": ["SetEnv=…", "ProxyCommand=…", "Port=…", "…"]}}


def texts(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each text in a document."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from texts(value, (*path, key))
    if isinstance(tree, str):
        yield path


def test_a_secret_in_any_text_of_a_snapshot_is_left_out() -> None:
    secret = "hf_aB3dE5fG7hJ9kL1mN2pQ4rS6"
    planted = 0
    for path in texts(healthy()):
        document = healthy()
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = f"x {secret}"
        try:
            snapshot = Snapshot.model_validate(document)
        except ValidationError:  # no text but an address, a version or a word of a list
            continue
        planted += 1
        assert secret not in redact(snapshot)[0].model_dump_json(), path
    assert planted > 50


def reachable(*models: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that these are made of, themselves among them."""
    found: dict[type[BaseModel], None] = {}
    waiting: list[Any] = [*models]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in found:
            found[kind] = None
            waiting += (field.annotation for field in kind.model_fields.values())
        else:
            waiting += get_args(kind)
    return list(found)


def planted(annotation: Any, secret: str) -> Any:
    """A value of this type with a secret in its texts; None where it holds no text of anybody's."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is str:
        return f"x {secret}"
    if origin in (tuple, list, frozenset) and (part := planted(parts[0], secret)):
        return (part,)
    if origin is dict and (part := planted(parts[1], secret)):
        return {"WANDB_KEY": part}
    if origin is Literal or isinstance(annotation, type):
        return None
    return next((value for part in parts if (value := planted(part, secret))), None) if origin is not dict else None


MODELS = reachable(Snapshot, HangSnapshot)
TEXTS = [
    (model, name) for model in MODELS for name, field in model.model_fields.items() if planted(field.annotation, "x")
]
PERSONAL = {"user", "command", "cmdline", "parent", "env", "environ", "argv", "line", "access", "differing"}
"""Names that are given to nothing but what a mark says."""


def test_a_secret_in_any_text_of_any_model_is_left_out() -> None:
    secret = "hf_aB3dE5fG7hJ9kL1mN2pQ4rS6"
    assert len(TEXTS) > 150
    for model, name in TEXTS:
        if marks(model, Holds).get(name) is Holds.USER:
            continue  # gathered first, and replaced wherever they stand
        value = model.model_construct(**{name: planted(model.model_fields[name].annotation, secret)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a lone field is no whole model
            assert secret in value.model_dump_json(), (model, name)
            assert secret not in json.dumps(clean(value, value.model_dump(mode="json", by_alias=True), Redacted())), (
                model,
                name,
            )


def test_what_names_people_and_their_words_is_marked_in_its_type() -> None:
    """A command line of a program that no other may take the place of holds nothing of anybody's: it has a pattern."""
    unmarked = {(model.__name__, name) for model, name in TEXTS if name in PERSONAL and name not in marks(model, Holds)}
    assert unmarked == {("IptablesSave", "command")}
