"""pulumi-resource-docker: Container, RemoteImage and Volume, with the official plugin's diffs and messages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pulumi.provider.experimental import provider as sdk

from standin.diffs import changes, diff_response
from standin.docker_body import IN_PLACE, create_body, update_body, upload_archive
from standin.docker_daemon import Daemon, DaemonError, Gone, Unreachable
from standin.docker_diff import replacing, resource_changes, same
from standin.docker_readback import merged, read_back
from standin.docker_schema import CONTAINER, IMAGE, INPUTS, OUTPUTS, VOLUME, problems, with_defaults
from standin.server import Failure, Kept, in_thread, serve
from standin.values import UNKNOWN, Plain, PropertyMap, plain_map, type_of, wrap, wrap_map

VERSION = "5.2.0"
PROVIDER = "pulumi:providers:docker"
CONFIG = ("host", "sshOpts", "version")

UNSAID = {"attach": False, "logs": False, "wait": False}
"""What a container's state says of the knobs that neither the program nor the daemon mentions."""

Values = Mapping[str, Plain]


@dataclass(frozen=True)
class Existing:
    """What is in the state already, or must stay there, when something fails after the daemon has made it."""

    urn: str
    resource_id: str
    state: Values
    inputs: PropertyMap


@contextmanager
def failing(what: str = "", doing: str = "", existing: Existing | None = None) -> Iterator[None]:
    """The daemon's refusal in the official plugin's words. What exists stays in the state, with an init error."""
    try:
        yield
    except (DaemonError, ValueError) as error:
        what = "" if isinstance(error, Unreachable) else what
        doing = f"creating {existing.urn}: " if existing else doing
        message = f"{doing}1 error occurred:\n\t* {what}{error}\n\n"
        kept = Kept(existing.resource_id, wrap_map(existing.state), existing.inputs) if existing else None
        raise Failure(message, kept) from error


def repo_digest(name: str, digests: list[str]) -> str:
    """The digest under the name's own repository, or the first; empty for an image that was built here."""
    repository = name.partition("@")[0]
    if ":" in repository.rsplit("/", 1)[-1]:
        repository = repository.rpartition(":")[0]
    own = [digest for digest in digests if digest.startswith(f"{repository}@")]
    return (own or digests or [""])[0]


class DockerProvider(sdk.Provider):
    def __init__(self) -> None:
        self.daemon = Daemon("")

    async def check_config(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        values = plain_map(request.new_inputs)
        values.setdefault("host", os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
        failures = [
            sdk.CheckFailure(name, f"{name} is not supported by this stand-in for pulumi-docker")
            for name in values.keys() - set(CONFIG)
        ]
        options = values.get("sshOpts")
        if isinstance(options, str) and options != UNKNOWN:
            values["sshOpts"] = json.dumps(json.loads(options), separators=(",", ":"))
        return sdk.CheckResponse(wrap_map(values), failures)

    async def configure(self, request: sdk.ConfigureRequest) -> sdk.ConfigureResponse:
        values = plain_map(request.args)
        self.daemon = Daemon(values.get("host") or "", json.loads(values.get("sshOpts") or "[]"))
        # as the official one, without accept_secrets: the engine opens secrets and marks the same outputs secret again
        return sdk.ConfigureResponse(supports_preview=True)

    async def check(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        kind, values = type_of(request.urn), plain_map(request.new_inputs)
        if kind not in INPUTS:
            return sdk.CheckResponse(
                {}, [sdk.CheckFailure("", f"{kind} is not provided by this stand-in for pulumi-docker")]
            )
        failures = [sdk.CheckFailure("", complaint) for complaint in problems(INPUTS[kind], values, f"{request.name}.")]
        values = with_defaults(INPUTS[kind], values)
        if kind != IMAGE and not values.get("name"):
            old = plain_map(request.old_inputs)
            auto = old.get("name") if "name" in (old.get("__defaults") or []) else None
            values["name"] = auto or f"{request.name}-{request.random_seed.hex()[:7]}"
            values["__defaults"] = ["name"]
        return sdk.CheckResponse(wrap_map(values), failures)

    async def diff(self, request: sdk.DiffRequest) -> sdk.DiffResponse:
        state, inputs = plain_map(request.old_state), plain_map(request.new_inputs)
        kind = type_of(request.urn)
        if kind == PROVIDER:
            # a changed host is an update of the provider: what it holds is then looked for on the new host
            old, new = ({name: values.get(name) for name in ("host", "sshOpts")} for values in (state, inputs))
            return diff_response(changes(old, new))
        schema = INPUTS[kind]
        named = kind == VOLUME and "name" not in (inputs.get("__defaults") or [])
        return diff_response(
            resource_changes(schema, state, inputs),
            replacing(schema, state, inputs),
            delete_before_replace=kind == CONTAINER or named,
        )

    @in_thread
    def create(self, request: sdk.CreateRequest) -> sdk.CreateResponse:
        inputs, kind = plain_map(request.properties), type_of(request.urn)
        if request.preview:
            return sdk.CreateResponse("", wrap_map({**inputs, **dict.fromkeys(OUTPUTS[kind], UNKNOWN)}))
        if kind == VOLUME:
            labels = {item["label"]: item["value"] for item in inputs.get("labels") or []}
            with failing("Unable to create volume: "):
                options = inputs.get("driverOpts") or {}
                resource_id = self.daemon.create_volume(inputs["name"], inputs.get("driver"), options, labels)
        elif kind == IMAGE:
            with failing("Unable to read Docker image into resource: "):
                resource_id = self.daemon.find_image(inputs["name"])["Id"] + inputs["name"]
        else:
            resource_id = self.create_container(inputs, request)
        with failing(existing=Existing(request.urn, resource_id, inputs, request.properties)):
            return sdk.CreateResponse(resource_id, wrap_map(self.observe(kind, resource_id, inputs, created=True)))

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
        if inputs["start"]:
            with failing("Unable to start container: ", existing=made):
                self.daemon.start(container_id)
            if inputs.get("wait"):
                with failing(existing=made):
                    self.wait_until_healthy(container_id, inputs["waitTimeout"])
        if inputs.get("attach"):
            with failing("Unable to wait container end of execution: ", existing=made):
                self.daemon.wait_for_end(container_id)
                if inputs.get("logs"):
                    inputs["containerLogs"] = self.daemon.logs(container_id)
        return container_id

    def wait_until_healthy(self, container_id: str, limit: int) -> None:
        end = time.monotonic() + limit
        while (health := self.daemon.health(container_id)) != "healthy":
            if health is None:
                raise ValueError(
                    "you have supplied a 'wait' argument, but the container does not have a healthcheck defined. "
                    "Please remove the 'wait' argument or add a 'healthcheck' attribute"
                )
            if time.monotonic() > end:
                raise ValueError("container failed to be in healthy state")
            time.sleep(1)

    def observe(self, kind: str, resource_id: str, state: Values, created: bool = False) -> dict[str, Plain]:
        """The state with what the daemon says now. Raises Gone."""
        if kind == CONTAINER:
            found = self.daemon.container(resource_id)
            return {**UNSAID, **merged(state, read_back(found, state), created)}
        if kind == IMAGE:
            image = self.daemon.image(state["name"])
            if image is None:
                raise Gone(f"no image {state['name']}")
            digest = repo_digest(state["name"], image.get("RepoDigests") or [])
            return {**state, "imageId": image["Id"], "repoDigest": digest}
        volume = self.daemon.volume(resource_id)
        labels = [{"label": label, "value": value} for label, value in (volume.get("Labels") or {}).items()]
        found = {"name": volume["Name"], "driver": volume["Driver"], "driverOpts": volume.get("Options") or {}}
        for name, value in {**found, "labels": labels}.items():
            if not same(state.get(name), value, INPUTS[VOLUME][name]):
                state = {**state, name: value}
        return {**state, "mountpoint": volume["Mountpoint"]}

    @in_thread
    def read(self, request: sdk.ReadRequest) -> sdk.ReadResponse:
        kind, resource_id = type_of(request.urn), request.resource_id
        inputs, old = dict(request.inputs), plain_map(request.properties)
        with failing(doing=f"refreshing {request.urn}: "):
            try:
                state = self.observe(kind, resource_id, old)
            except Gone:
                return sdk.ReadResponse()  # without an id the engine drops it from the state
        if kind == IMAGE:
            resource_id = state["imageId"] + state["name"]
        for name, value in plain_map(request.inputs).items():
            wanted = INPUTS[kind].get(name)
            if wanted and not same(value, state.get(name), wanted):
                inputs[name] = wrap(state.get(name))
        return sdk.ReadResponse(resource_id, wrap_map(state), inputs)

    @in_thread
    def update(self, request: sdk.UpdateRequest) -> sdk.UpdateResponse:
        old, new, kind = plain_map(request.olds), plain_map(request.news), type_of(request.urn)
        schema = INPUTS[kind]
        # what the program no longer says is gone, unless it is the daemon's to say
        stays = {name: value for name, value in old.items() if name not in schema or schema[name].computed}
        state = {**stays, **new}
        if request.preview:
            return sdk.UpdateResponse(wrap_map(state))
        doing = f"updating {request.urn}: "
        with failing(doing=doing):
            self.daemon.client()
        if kind == IMAGE:
            with failing("Unable to read Docker image into resource: ", doing):
                self.daemon.find_image(new["name"])
                state = self.observe(kind, request.resource_id, state)
        if kind == CONTAINER:
            if new.get("mustRun") and old.get("mustRun") is False and new.get("start"):
                with failing("Unable to start container: ", doing):
                    self.daemon.start(request.resource_id)
            if not all(same(old.get(name), new.get(name), schema[name]) for name in IN_PLACE):
                with failing("Unable to update a container: ", doing):
                    self.daemon.update_container(request.resource_id, update_body(new))
        return sdk.UpdateResponse(wrap_map(state))

    @in_thread
    def delete(self, request: sdk.DeleteRequest) -> None:
        state, kind, resource_id = plain_map(request.properties), type_of(request.urn), request.resource_id
        doing = f"deleting {request.urn}: "
        with failing(doing=doing):
            self.daemon.client()
        if kind == VOLUME:
            with failing(doing=doing), gone_is_fine():
                self.daemon.remove_volume(resource_id)
        elif kind == IMAGE:
            with failing("Unable to remove Docker image: ", doing), gone_is_fine():
                if not state.get("keepLocally"):
                    self.daemon.remove_image(state["name"], bool(state.get("forceRemove")))
        else:
            self.delete_container(resource_id, state, doing)

    def delete_container(self, resource_id: str, state: Values, doing: str) -> None:
        if not state.get("attach"):
            with failing(f"Error stopping container {resource_id}: ", doing), gone_is_fine():
                self.daemon.stop(resource_id, state.get("destroyGraceSeconds") or 0)
        under_way = "is already in progress"
        with failing(f"Error deleting container {resource_id}: ", doing), gone_is_fine(under_way):
            self.daemon.remove_container(resource_id, state.get("removeVolumes", True))
        with failing(f"Error waiting for container removal '{resource_id}': ", doing), gone_is_fine(under_way):
            self.daemon.wait_for_end(resource_id, "removed" if state.get("rm") else "not-running")


@contextmanager
def gone_is_fine(*also: str) -> Iterator[None]:
    """What is to be deleted may be gone already."""
    try:
        yield
    except Gone:
        pass
    except DaemonError as error:
        if not any(text in str(error) for text in also):
            raise


def main() -> None:
    serve(VERSION, DockerProvider(), at_end=lambda: None)
