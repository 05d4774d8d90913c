"""Keeps the control host's paths out of the state.

The SDK sends with each resource where in the program it was declared, as a stack trace that names every file on the
way: the interpreter's, the engine's and the packages' own folders among them. A state is shared; those paths are of
this machine alone. What lies in the project stays, the engine writes it relative to the project.
"""

from typing import Any

from pulumi.runtime import settings
from pulumi.runtime.proto import resource_pb2, source_pb2

from components.settings.base import PROJECT_DIR

OURS = PROJECT_DIR.as_uri() + "/"
PACKAGES = OURS + ".venv/"


def is_ours(position: source_pb2.SourcePosition) -> bool:
    return position.uri.startswith(OURS) and not position.uri.startswith(PACKAGES)


def clean(request: resource_pb2.RegisterResourceRequest) -> None:
    """Leave only the project's own files in what a request says of its origin."""
    kept = [frame for frame in request.stackTrace.frames if is_ours(frame.pc)]
    del request.stackTrace.frames[:]
    request.stackTrace.frames.extend(kept)
    if not is_ours(request.sourcePosition):
        request.ClearField("sourcePosition")


def keep_to_the_project() -> None:
    """Clean requests as they leave from now on; the stack's own, declared before the program, has not left yet."""
    # the SDK has no switch for it
    monitor: Any = settings.get_monitor()
    register = monitor.RegisterResource

    def cleaned(request: resource_pb2.RegisterResourceRequest) -> Any:
        clean(request)
        return register(request)

    monitor.RegisterResource = cleaned
