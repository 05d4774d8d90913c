"""pulumi-resource-command: remote.Command and local.Command.

Every input is compared, and none replaces by itself: `triggers` replaces because the SDK tells the engine so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from secrets import token_hex

from pulumi.provider.experimental import provider as sdk
from pulumi.provider.experimental.property_value import PropertyValue

from standin.children import Children
from standin.command_run import Run, run_local, run_remote
from standin.command_schema import REMOTE, refusals, with_defaults
from standin.diffs import changes, diff_response
from standin.server import Failure, engine, in_thread, serve
from standin.values import UNKNOWN, PropertyMap, plain, plain_map, secret_strings, type_of, wrap_map

VERSION = "1.2.1"
OUTPUTS = ("stdout", "stderr")


def secret_inputs(inputs: PropertyMap) -> set[str]:
    """The inputs that hold a secret, except the connection, which a command cannot print."""
    return {name for name, value in inputs.items() if name != "connection" and value.contains_secret()}


def with_outputs(inputs: PropertyMap, outputs: Mapping[str, str]) -> PropertyMap:
    """The state. The output of a command with a secret input is secret, which is safer than the official plugin."""
    return {**inputs, **wrap_map(outputs, OUTPUTS if secret_inputs(inputs) else ())}


class CommandProvider(sdk.Provider):
    diff_inputs = True

    def __init__(self) -> None:
        self.children = Children()

    def execute(self, line: PropertyValue, inputs: PropertyMap, urn: str) -> PropertyMap:
        log = partial(engine.log, urn)
        hidden = secret_inputs(inputs)
        secrets = [text for name in hidden for text in secret_strings(inputs[name])]
        if hidden:
            # masking is not enough: a secret may be printed in part, or in pieces
            log(f"output is not shown while the command runs: {', '.join(sorted(hidden))} is secret")
        run = Run(plain(line), plain_map(inputs), log, secrets)
        try:
            outputs = (run_remote if type_of(urn) == REMOTE else run_local)(self.children, run)
        except OSError as error:
            raise Failure(str(error)) from error
        return with_outputs(inputs, outputs)

    async def configure(self, request: sdk.ConfigureRequest) -> sdk.ConfigureResponse:
        return sdk.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def check_config(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        odd = request.new_inputs.keys() - {"version"}
        reason = "this stand-in for pulumi-command takes no configuration"
        return sdk.CheckResponse(request.new_inputs, [sdk.CheckFailure(name, reason) for name in odd])

    async def check(self, request: sdk.CheckRequest) -> sdk.CheckResponse:
        inputs = dict(request.new_inputs)
        failures = [sdk.CheckFailure(*refusal) for refusal in refusals(type_of(request.urn), plain_map(inputs))]
        if "connection" in inputs:
            inputs["connection"] = with_defaults(inputs["connection"])
        return sdk.CheckResponse(inputs, failures)

    async def diff(self, request: sdk.DiffRequest) -> sdk.DiffResponse:
        # a secret is one value, as in the official plugin: its parts are never compared or named
        old, new = (plain_map(values, keep_secrets=True) for values in (request.old_state, request.new_inputs))
        for values in (old, new):
            values.pop("version", None)
        differences = list(changes(old, new))
        # triggers that change as a whole (added, removed, not known yet) replace because the provider says so; for one
        # element of them, the SDK tells the engine
        replacing = {"triggers"} & {change.path for change in differences}
        return diff_response(differences, replacing)

    @in_thread
    def create(self, request: sdk.CreateRequest) -> sdk.CreateResponse:
        return sdk.CreateResponse(f"{request.name}{token_hex(4)}", self.made(request, request.properties, "create"))

    @in_thread
    def update(self, request: sdk.UpdateRequest) -> sdk.UpdateResponse:
        return sdk.UpdateResponse(self.made(request, request.news, "update" if "update" in request.news else "create"))

    def made(self, request: sdk.CreateRequest | sdk.UpdateRequest, inputs: PropertyMap, which: str) -> PropertyMap:
        if request.preview:
            return with_outputs(inputs, dict.fromkeys(OUTPUTS, UNKNOWN))
        return self.execute(inputs[which], inputs, request.urn)

    # no read, as in the official plugin: a refresh never sees drift

    @in_thread
    def delete(self, request: sdk.DeleteRequest) -> None:
        inputs = {name: value for name, value in request.properties.items() if name not in OUTPUTS}
        if "delete" in inputs:
            self.execute(inputs["delete"], inputs, request.urn)

    async def cancel(self) -> None:
        self.children.end_all()


def main() -> None:
    provider = CommandProvider()
    serve(VERSION, provider, provider.children.end_all)
