"""As much of a Kubernetes API server as kubectl needs for one: objects out of a file, exec into a lab's hosts.

``python -m tests.kube.api_server STATE``, with a listening socket on its stdin. STATE is read anew for each request::

    {"objects": {"pods": [...], "jobs": [...]}, "enter": {"train-0": [argv before the command]},
     "forbidden": ["create pods/exec"], "silent": ["train-2"], "refused": ["train-1"], "created": [...]}

An exec is the subprotocol v5.channel.k8s.io: each WebSocket message begins with its channel's number, 0 to 3 for stdin,
stdout, stderr and the final status, and 255 with 0 behind it closes stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
from aiohttp import WSMsgType, web

PROTOCOL = "v5.channel.k8s.io"
SCHEMA = "1.34"
"""The release of Kubernetes by whose schemas objects are validated."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KINDS = {
    # by the plural its group and version, its kind, and whether it lies in a namespace
    "pods": ("v1", "Pod", True),
    "services": ("v1", "Service", True),
    "namespaces": ("v1", "Namespace", False),
    "endpoints": ("v1", "Endpoints", True),
    "jobs": ("batch/v1", "Job", True),
    "statefulsets": ("apps/v1", "StatefulSet", True),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy", True),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet", True),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob", True),
    "leaderworkersets": ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", True),
    "selfsubjectaccessreviews": ("authorization.k8s.io/v1", "SelfSubjectAccessReview", False),
}


class State:
    """The file, and who may do what."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.path.read_text())
        return state

    def objects(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.read().get("objects", {}).get(plural, [])
        return found

    def refuse(self, verb: str, what: str) -> web.Response | None:
        if f"{verb} {what}" not in self.read().get("forbidden", []):
            return None
        message = f'{what} is forbidden: User "ann" cannot {verb} resource "{what}" in API group "" in the namespace "default"'
        return failure(403, "Forbidden", message)


def failure(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return web.json_response({**status, "message": message, "reason": reason, "code": code}, status=code)


def resources(version: str) -> list[dict[str, Any]]:
    verbs = ["get", "list", "create", "patch", "delete"]
    found = [
        {"name": plural, "singularName": kind.lower(), "namespaced": spaced, "kind": kind, "verbs": verbs}
        for plural, (its, kind, spaced) in KINDS.items()
        if its == version
    ]
    return [*found, {**found[0], "name": "pods/exec", "kind": "PodExecOptions"}] if version == "v1" else found


def discovery() -> list[web.RouteDef]:
    """What kubectl asks first: which groups, versions and kinds there are."""
    groups: dict[str, set[str]] = {}
    for its, _, _ in KINDS.values():
        if "/" in its:
            groups.setdefault(its.partition("/")[0], set()).add(its)

    async def core(_: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})

    async def all_groups(_: web.Request) -> web.Response:
        listed: list[dict[str, Any]] = [
            {"name": group, "versions": [{"groupVersion": one, "version": one.partition("/")[2]} for one in versions]}
            for group, versions in groups.items()
        ]
        for one in listed:
            one["preferredVersion"] = one["versions"][0]
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})

    def of(one: str) -> Handler:
        async def listed(_: web.Request) -> web.Response:
            return web.json_response({"kind": "APIResourceList", "groupVersion": one, "resources": resources(one)})

        return listed

    every = {one for versions in groups.values() for one in versions}
    routes = [
        web.get("/api", core),
        web.get("/apis", all_groups),
        web.get("/version", version),
        web.get("/api/v1", of("v1")),
    ]
    return [*routes, *(web.get(f"/apis/{one}", of(one)) for one in every)]


def schemas() -> list[web.RouteDef]:
    """So much of OpenAPI that kubectl leaves the validation of what it creates to the server."""
    versions = sorted({its for its, _, _ in KINDS.values()})
    places = {one: f"api/{one}" if one == "v1" else f"apis/{one}" for one in versions}

    async def index(_: web.Request) -> web.Response:
        paths = {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places.values()}
        return web.json_response({"paths": paths})

    def of(one: str) -> Handler:
        async def document(_request: web.Request) -> web.Response:
            paths: dict[str, Any] = {}
            for plural, (its, kind, _) in KINDS.items():
                if its == one:
                    group, _, version = f"/{one}".rpartition("/")
                    gvk = {"group": group.lstrip("/"), "version": version, "kind": kind}
                    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
                    patch = {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": gvk}
                    paths[f"/{places[one]}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
            info = {"title": "lab", "version": "1"}
            return web.json_response({"openapi": "3.0.0", "info": info, "paths": paths})

        return document

    routes = [web.get(f"/openapi/v3/{place}", of(one)) for one, place in places.items()]
    return [web.get("/openapi/v3", index), *routes]


def matches(labels: dict[str, str], selector: str) -> bool:
    wanted = [one.partition("=") for one in selector.split(",") if one]
    return all(labels.get(key) == value.lstrip("=") for key, _, value in wanted)


def objects_of(state: State, plural: str, version: str, kind: str) -> tuple[Handler, Handler, Handler]:
    """List, get and create of one kind."""

    def labels(one: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = one["metadata"].get("labels", {})
        return found

    async def listed(request: web.Request) -> web.StreamResponse:
        if refused := state.refuse("list", plural):
            return refused
        raw = state.read().get("raw", {}).get(plural)
        if raw is not None:
            return web.Response(text=raw, content_type="application/json")
        wanted = request.query.get("labelSelector", "")
        items = [one for one in state.objects(plural) if matches(labels(one), wanted)]
        answer = {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}
        return web.json_response(answer)

    async def get(request: web.Request) -> web.StreamResponse:
        if refused := state.refuse("get", plural):
            return refused
        name = request.match_info["name"]
        found = next((one for one in state.objects(plural) if one["metadata"]["name"] == name), None)
        if found is None:
            return failure(404, "NotFound", f'{plural} "{name}" not found')
        return web.json_response({"apiVersion": version, "kind": kind, **found})

    return listed, get, creation(state, plural, kind)


def creation(state: State, plural: str, kind: str) -> Handler:
    """What is not a valid object is refused, as an API server does."""

    async def create(request: web.Request) -> web.StreamResponse:
        made = await request.json()
        try:
            kubernetes_validate.validate(made, SCHEMA, strict=True)
        except kubernetes_validate.ValidationError as error:
            return failure(422, "Invalid", f"{kind} is invalid: {error.message}")
        if request.query.get("dryRun"):
            return web.json_response(made, status=201)
        whole = state.read()
        whole.setdefault("objects", {}).setdefault(plural, []).append(made)
        state.path.write_text(json.dumps(whole))
        return web.json_response(made, status=201)

    return create


def execute(state: State) -> Handler:
    """Enters a pod as a kubelet does; a pod that is silent is one whose link to it is down."""

    async def handler(request: web.Request) -> web.StreamResponse:
        name, told = request.match_info["name"], state.read()
        if refused := state.refuse("create", "pods/exec"):
            return refused
        if name not in {one["metadata"]["name"] for one in state.objects("pods")}:
            return failure(404, "NotFound", f'pods "{name}" not found')
        if name in told.get("silent", []):
            await asyncio.sleep(600)
        if name in told.get("refused", []):
            words = "error dialing backend: dial tcp 10.77.0.9:10250: connect: connection refused"
            return failure(500, "InternalError", words)
        if "websocket" not in request.headers.get("Upgrade", "").lower():
            return failure(400, "BadRequest", "only WebSockets are spoken here")
        socket_ = web.WebSocketResponse(protocols=[PROTOCOL], max_msg_size=0)
        await socket_.prepare(request)
        await _run(socket_, [*told["enter"][name], *request.query.getall("command")])
        return socket_

    return handler


async def _run(websocket: web.WebSocketResponse, argv: list[str]) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    feeding = asyncio.create_task(_feed(websocket, process.stdin))
    await asyncio.gather(_pump(websocket, 1, process.stdout), _pump(websocket, 2, process.stderr))
    code = await process.wait()
    status: dict[str, Any] = {"metadata": {}, "status": "Success" if code == 0 else "Failure"}
    if code:
        status |= {"reason": "NonZeroExitCode", "message": f"command terminated with exit code {code}"}
        status["details"] = {"causes": [{"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}]}
    with contextlib.suppress(ConnectionError):  # the client is gone
        await websocket.send_bytes(b"\x03" + json.dumps(status).encode())
        await websocket.close()
    feeding.cancel()


async def _pump(websocket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader) -> None:
    while data := await stream.read(1 << 15):
        with contextlib.suppress(ConnectionError):  # the client is gone: the program's output goes nowhere
            await websocket.send_bytes(bytes([channel]) + data)


async def _feed(websocket: web.WebSocketResponse, stdin: asyncio.StreamWriter) -> None:
    """Until the client closes stdin, or is gone: the program in the pod has the end of its stdin in both cases."""
    try:
        async for message in websocket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                stdin.write(message.data[1:])
                await stdin.drain()
            elif message.type is WSMsgType.BINARY and message.data[:2] == b"\xff\0":
                break
    except ConnectionError:  # the program has ended
        return
    finally:
        stdin.close()


def review(state: State) -> Handler:
    """``kubectl auth can-i``."""

    async def handler(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        of = asked["spec"]["resourceAttributes"]
        what = "/".join(one for one in (of["resource"], of.get("subresource")) if one)
        asked["status"] = {"allowed": state.refuse(of["verb"], what) is None}
        return web.json_response(asked, status=201)

    return handler


def application(state: State) -> web.Application:
    app = web.Application(client_max_size=1 << 24)
    app.add_routes([*discovery(), *schemas()])
    for plural, (version, kind, spaced) in KINDS.items():
        listed, get, create = objects_of(state, plural, version, kind)
        root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        place = f"{root}/namespaces/{{namespace}}/{plural}" if spaced else f"{root}/{plural}"
        if plural == "selfsubjectaccessreviews":
            app.add_routes([web.post(place, review(state))])
        else:
            app.add_routes([web.get(place, listed), web.get(f"{place}/{{name}}", get), web.post(place, create)])
    app.add_routes([web.route("*", "/api/v1/namespaces/{namespace}/pods/{name}/exec", execute(state))])
    return app


def main() -> None:
    listening = socket.socket(fileno=0)
    server = application(State(Path(sys.argv[1])))
    server.on_startup.append(_say_so)
    web.run_app(server, sock=listening, print=None)


async def _say_so(_server: web.Application) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
