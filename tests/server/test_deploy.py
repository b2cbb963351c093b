"""The container and its dashboard name options and metrics that exist; nothing here builds or runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from forerun.flags import flags_of
from forerun.server.request import ServeRequest
from tests.helpers.served import client

ROOT = Path(__file__).parents[2]


def test_options_of_the_container_exist() -> None:
    known = {flag.name for flag in flags_of(ServeRequest)}
    compose: Any = yaml.safe_load((ROOT / "compose.yaml").read_text())
    lines = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.M)
    words = [word for line in lines for word in json.loads(line)]
    words += compose["services"]["forerun"]["command"]
    used = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    assert used
    assert used <= known


def test_files_of_the_composition_exist() -> None:
    compose: Any = yaml.safe_load((ROOT / "compose.yaml").read_text())
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if volume.startswith("./")
    ]
    assert len(mounted) == 4
    assert all((ROOT / name).is_file() for name in mounted)


def test_metrics_of_the_dashboard_exist() -> None:
    panels = json.loads((ROOT / "deploy" / "dashboard.json").read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    with client() as one:
        one.chat(max_tokens=3)
        served = one.get("/metrics").text
    for name in re.findall(r"forerun:\w+", shown):
        assert re.search(rf"^(# TYPE )?{name}\b", served, re.M), name
