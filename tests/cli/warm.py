"""What all calls of the tool make of the package alone, made once: tests/lab/warm_server.py forks from what has it."""

import importlib
import pkgutil

import typer.main

import nccl_doctor
from nccl_doctor.cli import main
from nccl_doctor.crew.start import bundle
from nccl_doctor.inventory.load import load
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.reader import all_wordings
from nccl_doctor.report.html import document
from nccl_doctor.text.secrets import without_secrets
from tests.checks.snapshots import patched
from tests.planted import PLANTED


def prepare() -> None:
    """Makes modules, command lines, patterns and templates."""
    for found in pkgutil.walk_packages(nccl_doctor.__path__, "nccl_doctor."):
        if not found.name.startswith(("nccl_doctor.probe.", "nccl_doctor.__main__")):
            importlib.import_module(found.name)
    apps = {name: main.app(name) for name in (*main.COMMANDS, "")}
    commands = {made: typer.main.get_command(made) for made in apps.values()}
    setattr(main, "app", lambda first="": apps.get(first, apps[""]))  # noqa: B010 - a function of its module
    setattr(typer.main, "get_command", commands.__getitem__)  # noqa: B010 - likewise
    for command in commands.values():
        for one in (command, *getattr(command, "commands", {}).values()):
            for parameter in one.params:
                parameter.get_runtime_param()
    all_wordings()
    templates = document._environment()
    for name in templates.list_templates(["html"]):
        templates.get_template(name)
    for line, _ in PLANTED.values():
        without_secrets(line)
    judge(patched({}), "check")
    bundle()
    load(None, where="node1", exclude=None, environ={})
