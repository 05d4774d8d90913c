"""pulumi-resource-docker: Container and RemoteImage, with the official plugin's diffs and messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pulumi.provider.experimental import provider as sdk

from standin.diffs import changes, diff_response
from standin.docker_body import create_body, upload_archive
from standin.docker_daemon import Daemon, DaemonError, Gone, Unreachable
from standin.docker_diff import replacing, resource_changes, same
from standin.docker_readback import merged, read_back
from standin.docker_schema import CONTAINER, IMAGE, INPUTS, OUTPUTS, problems, with_defaults
from standin.server import Failure, Kept, in_thread, serve
from standin.values import UNKNOWN, Plain, PropertyMap, plain_map, type_of, wrap, wrap_map

VERSION = "5.2.0"
PROVIDER = "pulumi:providers:docker"
CONFIG = ("host", "sshOpts", "version")

Values = Mapping[str, Plain]


@dataclass(frozen=True)
class Existing:
    """A resource that the daemon has made, and that must be in the state although something failed after that."""

    urn: str
    resource_id: str
    state: Values
    inputs: PropertyMap


@contextmanager
def failing(what: str = "", doing: str = "", existing: Existing | None = None) -> Iterator[None]:
    """Turn the daemon's errors into the official plugin's. What exists stays in the state, with an init error."""
    try:
        yield
    except (DaemonError, ValueError) as error:
        what = "" if isinstance(error, Unreachable) else what
        doing = f"creating {existing.urn}: " if existing else doing
        message = f"{doing}1 error occurred:\n\t* {what}{error}\n\n"
        kept = Kept(existing.resource_id, wrap_map(existing.state), existing.inputs) if existing else None
        raise Failure(message, kept) from error


class DockerProvider(sdk.Provider):
    def __init__(self) -> None:
        self.daemon = Daemon("")

    async def check_config(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        failures = [
            sdk.CheckFailure(name, f"{name} is not supported by this stand-in for pulumi-docker")
            for name in request.new_inputs.keys() - set(CONFIG)
        ]
        return sdk.CheckResponse(request.new_inputs, failures)

    async def configure(self, request: sdk.ConfigureRequest) -> sdk.ConfigureResponse:
        values = plain_map(request.args)
        self.daemon = Daemon(values.get("host") or "", json.loads(values.get("sshOpts") or "[]"))
        # like the official one, without accept_secrets: the engine opens secrets, then marks the same outputs secret
        return sdk.ConfigureResponse(supports_preview=True)

    async def check(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        kind, values = type_of(request.urn), plain_map(request.new_inputs)
        if kind not in INPUTS:
            return sdk.CheckResponse(
                {}, [sdk.CheckFailure("", f"{kind} is not provided by this stand-in for pulumi-docker")]
            )
        failures = [sdk.CheckFailure("", complaint) for complaint in problems(INPUTS[kind], values, f"{request.name}.")]
        return sdk.CheckResponse(wrap_map(with_defaults(INPUTS[kind], values)), failures)

    async def diff(self, request: sdk.DiffRequest) -> sdk.DiffResponse:
        state, inputs = plain_map(request.old_state), plain_map(request.new_inputs)
        kind = type_of(request.urn)
        if kind == PROVIDER:
            # a changed host is an update of the provider: its resources are then expected on the new host
            old, new = ({name: values.get(name) for name in ("host", "sshOpts")} for values in (state, inputs))
            return diff_response(changes(old, new))
        schema = INPUTS[kind]
        return diff_response(
            resource_changes(schema, state, inputs),
            replacing(schema, state, inputs),
            delete_before_replace=kind == CONTAINER,
        )

    @in_thread
    def create(self, request: sdk.CreateRequest) -> sdk.CreateResponse:
        inputs, kind = plain_map(request.properties), type_of(request.urn)
        if request.preview:
            return sdk.CreateResponse("", wrap_map({**inputs, **dict.fromkeys(OUTPUTS[kind], UNKNOWN)}))
        if kind == IMAGE:
            with failing("Unable to read Docker image into resource: "):
                resource_id = self.daemon.find_image(inputs["name"])["Id"] + inputs["name"]
        else:
            resource_id = self.create_container(inputs, request)
        with failing(existing=Existing(request.urn, resource_id, inputs, request.properties)):
            return sdk.CreateResponse(resource_id, wrap_map(self.observe(kind, resource_id, inputs)))

    def create_container(self, inputs: dict[str, Plain], request: sdk.CreateRequest) -> str:
        with failing(f"Unable to create container with image {inputs['image']}: "):
            self.daemon.find_image(inputs["image"])
        with failing():
            body, archives = create_body(inputs), [upload_archive(item) for item in inputs.get("uploads") or []]
        with failing("Unable to create container: "):
            container_id = self.daemon.create_container(body, inputs["name"])
        made = Existing(request.urn, container_id, inputs, request.properties)
        with failing("Unable to upload volume content: ", existing=made):
            for archive in archives:
                self.daemon.upload(container_id, archive)
        with failing("Unable to start container: ", existing=made):
            self.daemon.start(container_id)
        return container_id

    def observe(self, kind: str, resource_id: str, state: Values) -> dict[str, Plain]:
        """The state with the daemon's current values. Raises Gone."""
        if kind == CONTAINER:
            return merged(state, read_back(self.daemon.container(resource_id), state))
        image = self.daemon.image(state["name"])
        if image is None:
            raise Gone(f"no image {state['name']}")
        return {**state, "imageId": image["Id"]}

    @in_thread
    def read(self, request: sdk.ReadRequest) -> sdk.ReadResponse:
        kind, resource_id = type_of(request.urn), request.resource_id
        inputs, old = dict(request.inputs), plain_map(request.properties)
        with failing(doing=f"refreshing {request.urn}: "):
            try:
                state = self.observe(kind, resource_id, old)
            except Gone:
                return sdk.ReadResponse()  # without an id, the engine drops it from the state
        if kind == IMAGE:
            resource_id = state["imageId"] + state["name"]
        for name, value in plain_map(request.inputs).items():
            definition = INPUTS[kind].get(name)
            if definition and not same(value, state.get(name), definition):
                inputs[name] = wrap(state.get(name))
        return sdk.ReadResponse(resource_id, wrap_map(state), inputs)

    @in_thread
    def update(self, request: sdk.UpdateRequest) -> sdk.UpdateResponse:
        old, new, kind = plain_map(request.olds), plain_map(request.news), type_of(request.urn)
        schema = INPUTS[kind]
        # what the program no longer sets is dropped, unless the daemon sets it
        kept = {name: value for name, value in old.items() if name not in schema or schema[name].computed}
        state = {**kept, **new}
        if request.preview:
            return sdk.UpdateResponse(wrap_map(state))
        doing = f"updating {request.urn}: "
        with failing(doing=doing):
            self.daemon.client()
        if kind == CONTAINER:
            if new.get("mustRun") and old.get("mustRun") is False:
                with failing("Unable to start container: ", doing):
                    self.daemon.start(request.resource_id)
            if old.get("restart") != new["restart"]:
                with failing("Unable to update a container: ", doing):
                    self.daemon.set_restart(request.resource_id, new["restart"])
        return sdk.UpdateResponse(wrap_map(state))

    @in_thread
    def delete(self, request: sdk.DeleteRequest) -> None:
        state, container = plain_map(request.properties), request.resource_id
        doing = f"deleting {request.urn}: "
        with failing(doing=doing):
            self.daemon.client()
        if type_of(request.urn) == CONTAINER:
            with failing(f"Error stopping container {container}: ", doing), suppress(Gone):
                self.daemon.stop(container, state.get("destroyGraceSeconds") or 0)
            with failing(f"Error deleting container {container}: ", doing), suppress(Gone):
                self.daemon.remove_container(container)


def main() -> None:
    serve(VERSION, DockerProvider(), at_end=lambda: None)
