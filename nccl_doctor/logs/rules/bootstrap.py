"""Finding an interface and the other ranks: NCCL's bootstrap and the host's own name."""

from __future__ import annotations

from nccl_doctor.logs.rule import WEB, Rule, hint, likely, root

_VIRTUAL = (
    r"(?:lo|docker\d*|virbr\d*|veth\w*|br-\w+|lxc\w*|lxdbr\d*|cni\d*|flannel\S*|cali\w*|tailscale\d*|wg\d*|tun\d*"
    r"|tap\d*|podman\d*|vmnet\d*)"
)
"""Interfaces that other hosts do not reach, or not by this address."""

RULES: tuple[Rule, ...] = (
    hint(
        "wrong-interface",
        r"(?:Bootstrap ?: Using|NET(?:/Socket)? ?: Using(?: interface)?|; OOB) (?:\[0\])?(?P<iface>"
        + _VIRTUAL
        + r"):(?P<ip>[0-9a-fA-F.:]+)",
        "n1:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>",
    ),
    root(
        "ifname-no-match",
        r"Bootstrap ?: ?no socket interface found",
        "n1:71:2204 [0] bootstrap.cc:44 NCCL WARN Bootstrap : no socket interface found",
    ),
    root(
        "ifname-no-match",
        r"NET/Socket ?: ?[Nn]o (?:usable listening )?interface found",
        "n1:71:71 [0] transport/net_socket.cc:48 NCCL WARN NET/Socket : no interface found",
    ),
    root(
        "ifname-no-match",
        r"WARN (?:.*: )?No usable listening interface found",
        "n1:71:71 [0] transport/net_socket.cu:90 NCCL WARN No usable listening interface found",
    ),
    root(
        "ifname-no-match",
        r"No interface found in the same subnet as remote address",
        "n1:7:7 [0] misc/socket.cc:242 NCCL WARN Net : No interface found in the same subnet as remote address "
        "10.9.0.1<5>",
    ),
    root(
        "ifname-no-match",
        r"NET/IB ?: No IP interface found",
        "n1:71:71 [0] transport/net_ib.cc:170 NCCL WARN NET/IB : No IP interface found.",
    ),
    root(
        "ifname-no-match",
        r"no device found (?:matching|after excluding) .*verify NCCL_OOB_NET_IFNAME",
        "n1:7:7 [0] bootstrap.cc:90 NCCL WARN no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME",
    ),
    root(
        "gloo-ifname-invalid",
        r"Unable to find address for:? ?(?P<iface>[A-Za-z0-9._=^,@-]+)",
        "RuntimeError: [enforce fail at ../gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address "
        "for: eth9",
    ),
    root(
        "gloo-ifname-invalid",
        r"Unable to find interface for: ?(?P<ip>[0-9a-fA-F.:]+)",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:208] rv != -1. Unable to find interface for: "
        "10.2.0.9",
    ),
    root(
        "gloo-ifname-invalid",
        r"makeDeviceFor(?:Interface|Hostname)\(\): unsupported gloo device",
        "RuntimeError: makeDeviceForInterface(): unsupported gloo device",
    ),
    root(
        "wrong-interface",
        r"set of common (?:task-to-task|routable|driver|network|NICs).*interface",
        "Exception: Unable to find a set of common task-to-task communication interfaces: [(0, {'lo'}), (1, {'eth1'})]",
    ),
    root(
        "wrong-interface",
        r"Socket creation failed ?: ?Address family not supported",
        "g7:4:4 [0] include/socket.h:318 NCCL WARN Net : Socket creation failed : Address family not supported by "
        "protocol",
    ),
    root(
        "hostname-unresolvable",
        r"(?:Name or service not known|Temporary failure in name resolution|nodename nor servname provided)",
        "ValueError: host not found: Name or service not known",
        unless=WEB,
    ),
    root(
        "hostname-unresolvable",
        r"No address associated with hostname",
        "socket.gaierror: [Errno -5] No address associated with hostname",
        unless=WEB,
    ),
    root(
        "hostname-unresolvable",
        r"[Cc]ould not resolve (?:host|hostname|proxy)?:? ?(?P<host>[A-Za-z0-9._-]+)(?::? Name|:? Temp|: No address|$)",
        "ssh: Could not resolve hostname gpu-17: Name or service not known",
    ),
    root(
        "hostname-unresolvable",
        r"[Tt]he IPv4 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[E socket.cpp:810] [c10d] The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        "hostname-unresolvable",
        r"Error: [Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be",
        "RuntimeError: The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or "
        "service not known).",
    ),
    hint(
        "hostname-unresolvable",
        r"[Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        "hostname-unresolvable",
        r"(?:[Nn]o such host is known|\[Errno 1100[1-4]\]|ENOTFOUND|EAI_(?:AGAIN|NONAME|FAIL)"
        r"|gethostby\w+ (?:failed|error)"
        r"|[Uu]nknown host:? |[Hh]ost ?name lookup fail"
        r"|(?:[Uu]nable|[Ff]ailed|[Cc]annot|[Cc]ould not) to resolve (?:host|name|\S+:\d)"
        r"|DNS (?:resolution|lookup|query) failed|Domain name not found|[Nn]ame resolution fail"
        r"|[Nn]o address found for host"
        r"|cannot resolve (?:host|own|local|the host))",
        "socket.gaierror: [Errno 11001] getaddrinfo failed",
        unless=WEB,
    ),
    root(
        "hostname-unresolvable",
        r"gloo.{0,160}(?:10049|requested address is not valid)",
        "RuntimeError: [enforce fail at gloo/transport/uv/device.cc:153] rv != -1. bind: (10049) The requested address "
        "is not valid in its context",
    ),
    root(
        "hostname-unresolvable",
        r"\(gai error: -\d+ - .{0,60}\)",
        "RuntimeError: The hostname of the server socket cannot be retrieved (gai error: -3 - Temporary failure in "
        "name resolution).",
        unless=r"IPv6 network addresses|client socket cannot be retrieved",
    ),
    root(
        "hostname-unresolvable",
        r"error encountered when getting address info ?:",
        "n1:7:7 [0] misc/socket.cc:317 NCCL WARN Net : error encountered when getting address info : Name or service "
        "not known",
    ),
    root(
        "hostname-unresolvable",
        r"(?:gaierror|getaddrinfo).{0,40}(?:fail|\[Errno -?\d+\])",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        unless=WEB,
    ),
    root(
        "hostname-unresolvable",
        r"(?:lookup (?P<host>[\w.-]+)(?: on \S+)?: no such host|Name does not resolve|UnknownHostException"
        r"|[Hh]ost ?name .{0,60}could not be resolved)",
        "dial tcp: lookup worker-0.train on 10.96.0.10:53: no such host",
    ),
    root(
        "world-size-mismatch",
        r"Bootstrap Root ?: mismatch in (?:rank count|info) from procs",
        "n1:9:9 [0] bootstrap.cc:125 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
    ),
    root(
        "world-size-mismatch",
        r"Bootstrap Root ?: rank (?P<rank>\d+) of \d+ ranks has already checked in",
        "n1:9:9 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in",
    ),
    root(
        "world-size-mismatch",
        r"Bootstrap Root ?: localId \d+ is out of range",
        "n1:9:9 [0] bootstrap.cc:390 NCCL WARN Bootstrap Root : localId 9 is out of range",
    ),
    root(
        "world-size-mismatch",
        r"Invalid rank requested ?: (?P<rank>-?\d+)/\d+",
        "n1:9:9 [0] init.cc:1750 NCCL WARN Invalid rank requested : 8/8",
    ),
    likely(
        "version-mismatch",
        r"WARN .*(?:Message truncated ?: received \d+|socketFinalizeAccept.*: wrong (?:type|magic))",
        "n1:9:9 [0] bootstrap.cc:60 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    root(
        "env-bad-value",
        r"Invalid NCCL_COMM_ID",
        "n1:9:9 [0] bootstrap.cc:88 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>",
    ),
)
