"""The gRPC server of a stand-in plugin: readable errors, half-made resources, log lines, threads, a quick end.

Built on pulumi.provider.experimental (SDK 3.272), whose server lacks some things. They are added here:
 - an exception reaches the user as a Python traceback: a Failure arrives as its message alone;
 - a create or update that half worked cannot be reported: a Failure with `kept` leaves the resource in the state;
 - methods share one event loop: `in_thread` moves a plain method off it;
 - Diff passes only the old state: a provider that sets `diff_inputs` gets the old inputs instead;
 - DiffConfig cannot answer (it reads attributes that its own response class lacks): it goes through Diff;
 - a plugin ends slowly when the engine closes it, and lives on when the engine is killed: `serve` ends it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from pulumi.provider.experimental import server as sdk
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import Provider
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2, status_pb2

from standin.values import PropertyMap

WORKERS = 64
"""Operations at one time: more than the engine's own limit (--parallel), so that none waits here."""

_pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="operation")

Self = TypeVar("Self")
Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Kept:
    """A resource that exists although its creation or update failed."""

    resource_id: str
    state: PropertyMap
    inputs: PropertyMap


class Failure(Exception):
    """An operation failed. The message is all that the user sees."""

    def __init__(self, message: str, kept: Kept | None = None) -> None:
        super().__init__(message)
        self.kept = kept


def in_thread(
    method: Callable[[Self, Request], Answer],
) -> Callable[[Self, Request], Coroutine[Any, Any, Answer]]:
    """Turn a provider's plain method into a coroutine that runs it in a thread."""

    @functools.wraps(method)
    async def call(self: Self, request: Request) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(_pool, method, self, request)

    return call


class Engine:
    """Sends log lines to the engine. Lines of one resource keep their order if one thread sends them."""

    def __init__(self) -> None:
        self.address = ""
        self._stub: engine_pb2_grpc.EngineStub | None = None
        self._lock = threading.Lock()

    def log(self, urn: str, message: str) -> None:
        """Show a line at the resource, as a status: the display shows only the newest one and keeps none."""
        with self._lock:
            if self._stub is None:
                self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(self.address))
        line = engine_pb2.LogRequest(severity=engine_pb2.INFO, message=message, urn=urn, ephemeral=True)
        self._stub.Log(line)


engine = Engine()


async def _abort(context: Any, failure: Failure) -> None:
    message = str(failure)
    trailing: tuple[tuple[str, bytes], ...] = ()
    if failure.kept is not None:
        status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=message)
        status.details.add().Pack(
            provider_pb2.ErrorResourceInitFailed(
                id=failure.kept.resource_id,
                reasons=[message],
                properties=PropertyValue.marshal_map(failure.kept.state),
                inputs=PropertyValue.marshal_map(failure.kept.inputs),
            )
        )
        trailing = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc.StatusCode.UNKNOWN, message, trailing)


def _readable(name: str) -> Any:
    inner = getattr(sdk.ProviderServicer, name)

    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await inner(self, request, context)
        except Exception as error:
            # the SDK raises its own exception, with the traceback in its text, while it handles ours
            if not isinstance(error.__context__, Failure):
                raise
            return await _abort(context, error.__context__)

    return call


class Servicer(sdk.ProviderServicer):
    """The SDK's servicer with the additions that the module's docstring lists."""

    def __init__(self, args: list[str], version: str, provider: Provider, engine_address: str) -> None:
        super().__init__(args, version, provider, engine_address)
        engine.address = engine_address

    async def Handshake(self, request: Any, context: Any) -> Any:
        # the base class raises, which would print a traceback at each start; the engine continues with Configure
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no handshake")

    async def Diff(self, request: Any, context: Any) -> Any:
        if getattr(self._provider, "diff_inputs", False):
            request.olds.CopyFrom(request.old_inputs)
        return await _diff(self, request, context)

    async def DiffConfig(self, request: Any, context: Any) -> Any:
        return await _diff(self, request, context)


_diff = _readable("Diff")
for _name in ("CheckConfig", "Configure", "Check", "Create", "Read", "Update", "Delete"):
    setattr(Servicer, _name, _readable(_name))


def serve(version: str, provider: Provider, at_end: Callable[[], None]) -> None:
    """Serve until the engine closes this plugin or is gone, then call at_end, which must end what we started."""
    parent = os.getppid()

    def leave(*_: object) -> None:
        at_end()
        os._exit(0)

    def leave_with_the_engine() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        leave()

    # the engine closes a plugin with SIGINT; the interpreter's own exit takes longer than a whole small update
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    threading.Thread(target=leave_with_the_engine, daemon=True).start()
    sdk.ProviderServicer = Servicer  # type: ignore[misc]  # main() takes no servicer
    sdk.main(sys.argv[1:], version, provider)
