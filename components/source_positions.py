"""Keeps the control host's paths out of the state.

The SDK records with each resource where in the program it was declared, as a stack trace that names every file on the
way: the interpreter's, the engine's and the packages' own folders among them. A state is shared; those paths are of
this machine alone. What lies in the project stays, the engine writes it relative to the project.
"""

from pulumi.runtime import resource
from pulumi.runtime.proto import source_pb2

from components.base import PROJECT_DIR

OURS = PROJECT_DIR.as_uri() + "/"
PACKAGES = OURS + ".venv/"


def of_the_project(trace: source_pb2.StackTrace) -> source_pb2.StackTrace:
    """The frames of a trace that are the project's own files."""
    kept = [frame for frame in trace.frames if frame.pc.uri.startswith(OURS) and not frame.pc.uri.startswith(PACKAGES)]
    return source_pb2.StackTrace(frames=kept)


def keep_to_the_project() -> None:
    """From now on only the project's own files are recorded; doing it twice is doing it once."""
    whole = resource._get_stack_trace
    if getattr(whole, "spark_stack", False):
        return

    def only_ours() -> source_pb2.StackTrace:
        return of_the_project(whole())

    only_ours.spark_stack = True  # type: ignore[attr-defined]
    # the SDK has no switch for it; the version is pinned, and a test holds the state to it
    resource._get_stack_trace = only_ours
