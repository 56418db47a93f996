"""Every wording against the line beside it, against its near misses, and against what the first pass needs."""

from __future__ import annotations

import re

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.facts import CHANNEL_RULES, RULES, FactRule, Facts
from nccl_doctor.logs.log import Reading
from nccl_doctor.logs.prefix import peel
from nccl_doctor.logs.reader import all_wordings
from nccl_doctor.logs.rule import BROKE_OFF, Grade, LogRule
from nccl_doctor.logs.signs import rules, signs
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.register import all_checks
from tests.bench.hostile_logs import sample_of
from tests.each import each

ALL = rules()
TABLES: list[LogRule | FactRule] = [*ALL, *RULES]

NEAR_MISSES = """\
[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [h]:29500 (errno: 97 - \
Address family).
[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 101 - Network is \
unreachable).
[W socket.cpp:697] [c10d] The hostname of the client socket cannot be retrieved. err=-3
[W socket.cpp:601] [c10d] The IPv6 network addresses of (h, 29500) cannot be retrieved (gai error: -2 - Name \
or service not known).
n1:1:2 [0] NCCL INFO NET/Plugin : Plugin load returned 17 : libnccl-net.so: cannot open shared object file: \
No such file or directory.
n1:1:2 [0] NCCL INFO Failed to open libibverbs.so[.1]
n1:1:2 [0] NCCL INFO NET/IB : No device found.
n1:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 3
n1:1:2 [0] NCCL INFO socketProgressOpt: abort called
n1:1:2 [0] NCCL INFO Multiple ranks on the same GPU detected and allowed. Disabling NVLS.
n1:1:2 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 5 > 4)
n1:1:2 [0] NCCL INFO misc/socket.cc:80 -> 6
n1:1:2 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - libmlx5.so: undefined symbol: \
mlx5dv_reg_dmabuf_mr, version MLX5_1.25
urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded \
(Caused by NameResolutionError: Temporary failure in name resolution)
requests.exceptions.ConnectionError: https://api.wandb.ai [Errno 111] Connection refused
W0228 09:02:41 12814 torch/distributed/elastic/multiprocessing/api.py:766] Closing process 12866 via signal \
SIGTERM
WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 10401 closing signal SIGTERM
# Out of bounds values : 0 OK
epoch 3 error 0.17 refused samples 4 timed out workers 0
the rank of the matrix is 8, world size unknown
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
[rank0]: WARNING: destroy_process_group() was not called before program exit, which can leak resources.
Warning: Permanently added '[10.0.0.2]:2022' (RSA) to the list of known hosts.
Authorization required, but no authorization protocol specified
""".splitlines()


@each(ALL, lambda rule: f"{rule.name}-{rule.sample[-24:]}")
def test_fits_the_line_beside_it(rule: LogRule) -> None:
    assert rule.match(rule.sample)


@each([*enumerate(TABLES)], lambda one: one[1].pattern[:40])
def test_its_sample_passes_the_first_pass(one: tuple[int, LogRule | FactRule]) -> None:
    assert one[0] in all_wordings().rules(sample_of(one[1]).encode())


@each(RULES + CHANNEL_RULES, lambda rule: rule.pattern[:40])
def test_a_line_shows_the_fact(rule: FactRule) -> None:
    facts, match = Facts(), rule.compiled.search(sample_of(rule))
    assert match
    facts.take(rule.kind, match, peel(sample_of(rule)))
    reading = Reading("x.log", facts)
    reading.note(rule.kind, match, 1, peel(sample_of(rule)))
    assert facts != Facts() or reading.failed_hosts


@each([rule for rule in ALL if rule.grade > Grade.HINT], lambda rule: rule.sample[-30:])
def test_alone_it_yields_its_own_diagnosis(rule: LogRule) -> None:
    verdict = diagnose([LogSource("x.log", [rule.sample.encode() + b"\n"])])
    names = [cause.name for cause in verdict.causes]
    assert names == [rule.name]


@each(TABLES, lambda rule: rule.pattern[:40])
def test_its_sample_goes_through_the_whole_verdict(rule: LogRule | FactRule) -> None:
    """Alone, and with each of its numbers longer than Python reads a number."""
    for text in (sample_of(rule), re.sub(r"\d+", "9" * 5000, sample_of(rule))):
        document = report(diagnose([LogSource("x.log", [text.encode() + b"\n"])]), 0.0).model_dump_json()
        assert "logs" in document


def test_near_misses_are_no_faults() -> None:
    for line in NEAR_MISSES:
        verdict = diagnose([LogSource("x.log", [line.encode() + b"\n"])])
        assert [cause.name for cause in verdict.causes] == [], line


def test_each_name_is_registered() -> None:
    assert signs().keys() <= {check.name for check in all_checks()}
    assert {name for one in signs().values() for name in (*one.after, *one.hint_beside)} <= signs().keys()


def test_the_first_pass_looks_for_strings_of_every_pattern() -> None:
    assert [TABLES[index].pattern for index in all_wordings().rules(b"")] == [BROKE_OFF]
    assert not any(all_wordings().wanted(line, 0, len(line)) for line in (b"", b"step 12 loss 0.31", b"^ C"))
    assert all_wordings().wanted(b"x\n^C\n", 0, 5)
