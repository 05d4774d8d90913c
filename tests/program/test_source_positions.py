"""The state says where a resource was declared only if that is in one of the project's own files."""

import pytest

from components.settings.base import PROJECT_DIR
from tests.program.runner import Engine


@pytest.mark.parametrize("stack", ["dev", "example"])
def test_no_resource_carries_a_path_of_the_control_host_outside_the_project(engine: Engine):
    """The SDK sends the interpreter's and the packages' folders too, and the state keeps them."""
    assert engine.declared
    inside = PROJECT_DIR.as_uri() + "/"
    for item in engine.declared:
        uris = [frame.pc.uri for frame in item.request.stackTrace.frames]
        position = item.request.sourcePosition.uri
        assert [uri for uri in (*uris, *filter(None, [position])) if not uri.startswith(inside)] == [], item.name
        assert not any("/.venv/" in uri for uri in uris), item.name


def test_a_resource_still_says_which_line_of_the_program_declared_it(example: Engine):
    for name, file in (("head-gid", "fabric.py"), ("head-engine", "engine.py")):
        frames = example.one(name).request.stackTrace.frames
        assert f"{PROJECT_DIR.as_uri()}/components/{file}" in {frame.pc.uri for frame in frames}
