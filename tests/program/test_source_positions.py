"""Where a resource was declared is in the state: in the project's own files, or not at all."""

from components.base import PROJECT_DIR


def test_no_resource_carries_a_path_of_the_control_host_outside_the_project(run_program):
    engine = run_program("example")
    assert engine.declared
    inside = PROJECT_DIR.as_uri() + "/"
    for item in engine.declared:
        uris = [frame.pc.uri for frame in item.request.stackTrace.frames]
        position = item.request.sourcePosition.uri
        assert [uri for uri in (*uris, *filter(None, [position])) if not uri.startswith(inside)] == [], item.name
        assert not any("/.venv/" in uri for uri in uris), item.name


def test_a_resource_still_says_which_line_of_the_program_declared_it(run_program):
    engine = run_program("example")
    lookup = engine.one("head-gid").request
    assert any(frame.pc.uri.endswith("/components/fabric.py") for frame in lookup.stackTrace.frames)
