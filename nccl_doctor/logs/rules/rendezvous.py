"""Ranks meeting at the master: torch's TCPStore, torchrun's rendezvous, JAX's coordination service.

Wordings: torch/csrc/distributed/c10d/socket.cpp and TCPStore.cpp (1.11 on), torch/distributed/elastic/rendezvous.
"""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, benign, generic, hint, likely

_CLIENT = r"client socket has failed to connect to .*"

RULES: tuple[Rule, ...] = (
    benign(
        r"errno: 97 - ",
        "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [head]:29500 (errno: 97 - "
        "Address family not supported by protocol).",
    ),
    benign(
        _CLIENT + r"errno: (?:99|101) - ",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 101 - Network is "
        "unreachable).",
    ),
    hint(
        "hostname-unresolvable",
        _CLIENT + r"system error: 10049 - ",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [own-name.local]:29500 (system error: "
        "10049 - The requested address is not valid in its context.).",
    ),
    hint(
        "connection-refused",
        _CLIENT + r"(?:errno: 111|system error: 10061) - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 111 - Connection "
        "refused).",
    ),
    hint(
        "connection-timed-out",
        _CLIENT + r"(?:errno: 110|system error: 10060) - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 110 - Connection "
        "timed out).",
    ),
    hint(
        "no-route-to-host",
        _CLIENT + r"errno: 113 - ",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to [head]:29500 (errno: 113 - No route to "
        "host).",
    ),
    likely(
        "rendezvous-timeout",
        r"client socket has (?:timed out after|failed to connect to any network address of)",
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.2, "
        "29500).",
    ),
    hint(
        "connection-refused",
        r"TCP client failed to connect/validate to host .*retrying.*Connection refused",
        "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - retrying (try=3, "
        "timeout=9ms, delay=1ms): Connection refused",
    ),
    hint(
        "rendezvous-timeout",
        r"TCP client failed to connect/validate to host .*retrying",
        "[W TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - retrying (try=3, "
        "timeout=9ms)",
    ),
    likely(
        "rendezvous-timeout",
        r"TCP client failed to connect/validate to host .*timed out",
        "[E TCPStore.cpp:329] [c10d] TCP client failed to connect/validate to host 10.0.0.2:29500 - timed out "
        "(try=3, timeout=9ms)",
    ),
    likely(
        "rendezvous-timeout",
        r"connect\(\) timed out\. Original timeout",
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:Did not receive (?:response|ready|init) .{0,40}(?:front-end|engine|worker)"
        r"|[Tt]imed out waiting for (?:engine|worker|placement group|front-end)|startup handshake)",
        "RuntimeError: Did not receive response from front-end process within 5 minutes",
    ),
    likely(
        "connection-timed-out",
        r"Failed to connect to GCS (?:at|within|after)|Unable to connect to GCS|ailed to connect to (?:the )?GCS",
        "RuntimeError: Failed to connect to GCS at address=192.168.5.20:6379. rpc_code: 14",
    ),
    likely(
        "rendezvous-timeout",
        r"Timed out after \d+ seconds waiting for clients",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
    ),
    likely(
        "rendezvous-timeout",
        r"Timed out (?:initializing process group in store based barrier|waiting for .* to join)",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=4, timeout=0:30:00)",
    ),
    hint(
        "rendezvous-timeout",
        r"Waiting in store based barrier to initialize process group for rank: (?P<rank>\d+)",
        "Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=4, timeout=0:30:00)",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:wait timeout after \d+ ?ms, keys|Timeout waiting for key|[Tt]imeout waiting for (?:ncclUniqueId"
        r"|NCCL unique))",
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/rank_3",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:RuntimeError|DistStoreError|StoreTimeout|LastError): Socket Timeout",
        "RuntimeError: Socket Timeout",
    ),
    likely(
        "rendezvous-timeout",
        r"Rendezvous(?:Timeout|Connection)(?:Error|Exception)",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        unless=r"keep-alive heartbeat",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:connection to the [Cc]10d store (?:has )?failed|[Rr]endezvous (?:has )?(?:timed out|failed))",
        "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.",
    ),
    likely(
        "rendezvous-timeout",
        r"is setting up NCCL communicator and retrieving ncclUniqueId .*(?:got error|timed out)",
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: Socket Timeout",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:DEADLINE_EXCEEDED|Deadline Exceeded).*(?:[Bb]arrier|coordinat|[Cc]onnect|RegisterTask|[Tt]imed out)",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect::0",
    ),
    likely(
        "rendezvous-timeout",
        r"(?:UNAVAILABLE|UNKNOWN): .*(?:failed to connect to (?:all|remote)|[Cc]oordination service)",
        "XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: ipv4:10.0.0.2:8476",
    ),
    likely(
        "rendezvous-timeout",
        r"[Tt]imed out waiting for (?:tasks|other|all|peers|nodes|workers|hosts)\b.*(?:start|join|connect|ready|rank"
        r"|node|worker)",
        "Timed out waiting for tasks to start. Please check connectivity between servers.",
    ),
    generic(
        "rendezvous-timeout",
        r"Rendezvous(?:Closed|GracefulExit)Error",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    ),
)
