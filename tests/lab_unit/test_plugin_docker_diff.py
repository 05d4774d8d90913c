"""Which differences the stand-in for the docker plugin reports, with which paths, and what it replaces.

The expectations are answers of the official plugin 5.2.0, asked over its own gRPC with the same states and inputs.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "plugins"))

from standin.docker_diff import replacing, resource_changes
from standin.docker_schema import CONTAINER, CONTAINER_INPUTS, IMAGE, INPUTS
from standin.values import UNKNOWN

BIND = {"type": "bind", "source": "/srv/cache", "target": "/cache"}
NFS = {"type": "volume", "source": "hub", "target": "/hub", "volumeOptions": {"driverName": "local"}}

INPUT: dict[str, Any] = {
    "name": "rank",
    "image": "engine:1",
    "command": ["vllm", "serve", "--max-num-seqs", "6"],
    "envs": ["A=1", "B=2", "C=3"],
    "labels": [{"label": "spark.rank", "value": "0"}, {"label": "spark.generation", "value": "g1"}],
    "mounts": [BIND, NFS],
    "restart": "no",
    "mustRun": True,
    "logOpts": {"max-size": "10m"},
    "healthcheck": {"tests": ["CMD", "true"], "interval": "1m0s"},
}
STATE = {
    **INPUT,
    "destroyGraceSeconds": 0,
    "ipcMode": "private",
    "logDriver": "json-file",
    "exitCode": None,
}


def differences(state=None, kind=CONTAINER, **inputs):
    """The differences (path: kind) of a container with these inputs in place of INPUT's; None leaves one out."""
    new = {name: value for name, value in {**INPUT, **inputs}.items() if value is not None}
    return dict(resource_changes(INPUTS[kind], {**STATE, **(state or {})}, new))


def replaced(**inputs):
    return bool({path.split("[")[0].split(".")[0] for path in differences(**inputs)} & replacing_of(inputs))


def replacing_of(inputs):
    return replacing(CONTAINER_INPUTS, STATE, {**INPUT, **inputs})


def test_a_second_run_finds_nothing():
    assert differences() == {}


@pytest.mark.parametrize(
    ("inputs", "paths"),
    [
        ({"command": ["vllm", "serve", "--max-num-seqs", "4"]}, {"command[3]": "UPDATE"}),
        ({"command": ["vllm", "serve", "--new", "--max-num-seqs", "6"]}, {"command[2]": "ADD"}),
        ({"command": ["vllm", "--max-num-seqs", "6"]}, {"command[1]": "DELETE"}),
        ({"envs": ["A=1", "B=9", "C=3"]}, {"envs[1]": "UPDATE"}),
        ({"envs": ["A=1", "B=2", "C=3", "D=4"]}, {"envs[3]": "ADD"}),
        ({"envs": ["A=1", "C=3"]}, {"envs[1]": "DELETE"}),
        (
            {"labels": [{"label": "spark.rank", "value": "0"}, {"label": "spark.generation", "value": "g2"}]},
            {"labels[1].value": "UPDATE"},
        ),
        ({"logOpts": {"max-size": "20m"}}, {'logOpts["max-size"]': "UPDATE"}),
        ({"healthcheck": {"tests": ["CMD", "true"], "interval": "2m0s"}}, {"healthcheck.interval": "UPDATE"}),
        ({"gpus": "all"}, {"gpus": "ADD"}),
        ({"restart": "always"}, {"restart": "UPDATE"}),
        ({"mounts": [NFS]}, {"mounts[0]": "DELETE"}),
        ({"image": UNKNOWN}, {"image": "UPDATE"}),
    ],
)
def test_a_change_is_named_by_the_smallest_path(inputs, paths):
    assert differences(**inputs) == paths


@pytest.mark.parametrize(
    "inputs",
    [
        {"envs": ["C=3", "A=1", "B=2"]},
        {"labels": INPUT["labels"][::-1]},
        {"mounts": [NFS, {**BIND, "readOnly": False}]},
        {"destroyGraceSeconds": 0},
        {"ipcMode": None},
        {"command": None},
        {"healthcheck": None},
        {"labels": None},
        {"logDriver": None},
    ],
)
def test_order_zeros_and_what_the_daemon_fills_in_are_no_change(inputs):
    assert differences(**inputs) == {}


def test_the_order_of_a_command_is_a_change():
    assert differences(command=["vllm", "serve", "6", "--max-num-seqs"])


def test_an_emptied_list_is_a_change_where_a_missing_one_is_not():
    assert differences(envs=[]) == {"envs": "DELETE"}


@pytest.mark.parametrize("name", ["labels", "envs", "command"])
def test_a_wholly_unknown_label_list_does_not_drag_a_container_into_a_replacement(name):
    assert differences(**{name: UNKNOWN}) == {}


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        ({"command": ["vllm"]}, True),
        ({"envs": ["A=2"]}, True),
        ({"image": "engine:2"}, True),
        ({"restart": "always"}, False),
        ({"healthcheck": {"tests": ["NONE"]}}, False),
        ({"mustRun": False}, False),
        ({"mounts": [BIND]}, True),
        ({"mounts": [BIND, {**NFS, "readOnly": True}]}, True),
        # the official plugin's trap: the container keeps its old mount
        ({"mounts": [{**BIND, "source": "/srv/other"}, NFS]}, False),
    ],
)
def test_replacements_are_the_official_ones(inputs, answer):
    assert replaced(**inputs) is answer


def test_a_read_back_value_in_dockers_own_form_is_a_difference():
    state = {"healthcheck": {"tests": ["CMD", "true"], "interval": "1m0s"}}
    assert differences(state, healthcheck={"tests": ["CMD", "true"], "interval": "60s"}) == {
        "healthcheck.interval": "UPDATE"
    }


def test_an_image_keeps_its_place_when_only_its_keeping_changes():
    state = {"name": "a@sha256:1", "imageId": "sha256:2", "keepLocally": False}
    changes = dict(resource_changes(INPUTS[IMAGE], state, {"name": "a@sha256:1", "keepLocally": True}))
    assert changes == {"keepLocally": "UPDATE"}
    assert replacing(INPUTS[IMAGE], state, {}).isdisjoint(changes)
