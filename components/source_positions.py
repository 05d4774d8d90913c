"""Keeps the control host's paths out of the state.

With each resource the SDK sends where in the program it was declared, as a stack trace that names every file on the
way, those of the interpreter, the engine and the packages too. A state is shared, and such paths mean nothing on
another machine. Files of the project stay; the engine writes them relative to it.
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
    """Leave only the project's own files in a request's stack trace."""
    kept = [frame for frame in request.stackTrace.frames if is_ours(frame.pc)]
    del request.stackTrace.frames[:]
    request.stackTrace.frames.extend(kept)
    if not is_ours(request.sourcePosition):
        request.ClearField("sourcePosition")


def keep_to_the_project() -> None:
    """Clean every request from now on, that of the stack itself included, which has not been sent yet."""
    # the SDK has no setting for it
    monitor: Any = settings.get_monitor()
    register = monitor.RegisterResource

    def cleaned(request: resource_pb2.RegisterResourceRequest) -> Any:
        clean(request)
        return register(request)

    monitor.RegisterResource = cleaned
