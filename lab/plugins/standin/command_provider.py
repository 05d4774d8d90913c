"""pulumi-resource-command: remote.Command, local.Command and local.run.

Every input takes part in the comparison and none replaces by itself: `triggers` replaces because the SDK says so to the
engine. CopyToRemote, passwords and assets are refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pulumi.provider.experimental import provider as sdk

from standin.children import Children
from standin.command_run import Run, run_local, run_remote
from standin.command_schema import LOCAL, LOCAL_RUN, REMOTE, refusals, with_defaults
from standin.diffs import changes, diff_response
from standin.masking import Masking
from standin.server import Failure, engine, in_thread, serve
from standin.values import UNKNOWN, Plain, PropertyMap, plain, plain_map, secret_strings, type_of, wrap_map

VERSION = "1.2.1"
OUTPUTS = ("stdout", "stderr")


def failures(kind: str, inputs: PropertyMap) -> list[sdk.CheckFailure]:
    return [sdk.CheckFailure(name, reason) for name, reason in refusals(kind, plain_map(inputs))]


def secret_inputs(inputs: PropertyMap) -> set[str]:
    """The inputs with a secret in them, but for the connection, which a command cannot print."""
    return {name for name, value in inputs.items() if name != "connection" and value.contains_secret()}


def with_outputs(inputs: PropertyMap, outputs: Mapping[str, str]) -> PropertyMap:
    """The state. What a command prints is secret when it was given a secret: safer than the official plugin."""
    return {**inputs, **wrap_map(outputs, OUTPUTS if secret_inputs(inputs) else ())}


class CommandProvider(sdk.Provider):
    diff_inputs = True

    def __init__(self) -> None:
        self.children = Children()

    def execute(
        self, kind: str, line: str, inputs: PropertyMap, urn: str, previous: Mapping[str, Plain]
    ) -> PropertyMap:
        def log(message: str, severity: str = "INFO", ephemeral: bool = True) -> None:
            engine.log(urn, message, severity, ephemeral)

        hidden = secret_inputs(inputs)
        run = Run(
            line,
            plain_map(inputs),
            {name: previous.get(name) or "" for name in OUTPUTS},
            log,
            Masking(text for name in hidden for text in secret_strings(inputs[name])),
            # a secret inside a script may be printed in part; one in the environment is known exactly
            stream=hidden <= {"environment"},
        )
        if not run.stream:
            log(f"output is not shown while it runs: {', '.join(sorted(hidden))} is secret")
        outputs = (run_remote if kind == REMOTE else run_local)(self.children, run)
        return with_outputs(inputs, outputs)

    async def configure(self, request: sdk.ConfigureRequest) -> sdk.ConfigureResponse:
        return sdk.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def check_config(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        odd = request.new_inputs.keys() - {"version"}
        reason = "this stand-in for pulumi-command has no configuration"
        return sdk.CheckResponse(request.new_inputs, [sdk.CheckFailure(name, reason) for name in odd])

    async def check(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        inputs = dict(request.new_inputs)
        found = failures(type_of(request.urn), inputs)
        if "connection" in inputs:
            inputs["connection"] = with_defaults(inputs["connection"])
        return sdk.CheckResponse(inputs, found)

    async def diff(self, request: sdk.DiffRequest) -> sdk.DiffResponse:
        # a secret is one value here, as in the official plugin: its parts are never compared or named
        old, new = (plain_map(values, keep_secrets=True) for values in (request.old_state, request.new_inputs))
        for values in (old, new):
            values.pop("version", None)
        found = list(changes(old, new))
        # triggers that change as a whole (given, taken away, not known yet) replace by the provider's own word; for one
        # element of them it is the SDK that tells the engine so
        replacing = {"triggers"} & {change.path for change in found}
        return diff_response(found, replacing)

    @in_thread
    def create(self, request: sdk.CreateRequest) -> sdk.CreateResponse:
        resource_id = f"{request.name}{secrets.token_hex(4)}"
        if request.preview:
            state = with_outputs(request.properties, dict.fromkeys(OUTPUTS, UNKNOWN))
        elif "create" in request.properties:
            line = plain(request.properties["create"])
            state = self.execute(type_of(request.urn), line, request.properties, request.urn, {})
        else:
            state = with_outputs(request.properties, dict.fromkeys(OUTPUTS, ""))
        return sdk.CreateResponse(resource_id, state)

    @in_thread
    def update(self, request: sdk.UpdateRequest) -> sdk.UpdateResponse:
        line = request.news.get("update", request.news.get("create"))
        previous = {name: request.olds[name] for name in OUTPUTS if name in request.olds}
        if request.preview:
            return sdk.UpdateResponse(with_outputs(request.news, dict.fromkeys(OUTPUTS, UNKNOWN)))
        if line is None:
            return sdk.UpdateResponse({**request.news, **previous})
        state = self.execute(type_of(request.urn), plain(line), request.news, request.urn, plain_map(previous))
        return sdk.UpdateResponse(state)

    async def read(self, request: sdk.ReadRequest) -> sdk.ReadResponse:
        # the official plugin reads nothing either: a refresh never sees drift
        return sdk.ReadResponse(request.resource_id, request.properties, request.inputs)

    @in_thread
    def delete(self, request: sdk.DeleteRequest) -> None:
        if "delete" not in request.properties:
            return
        inputs = {name: value for name, value in request.properties.items() if name not in OUTPUTS}
        self.execute(type_of(request.urn), plain(inputs["delete"]), inputs, request.urn, plain_map(request.properties))

    @in_thread
    def invoke(self, request: sdk.InvokeRequest) -> sdk.InvokeResponse:
        if request.tok != LOCAL_RUN:
            raise Failure(f"{request.tok} is not provided by this stand-in for pulumi-command")
        found = failures(LOCAL_RUN, request.args)
        if found:
            return sdk.InvokeResponse(failures=found)
        return sdk.InvokeResponse(self.execute(LOCAL, plain(request.args["command"]), request.args, "", {}))

    async def cancel(self) -> None:
        self.children.end_all()


def main() -> None:
    provider = CommandProvider()
    serve(VERSION, provider, provider.children.end_all)
