"""Exceptions with the names that tracebacks of the real libraries show."""


class OutOfMemoryError(RuntimeError):
    """torch's."""


class SafetensorError(Exception):
    """The Rust reader's."""


class DistNetworkError(RuntimeError):
    """torch.distributed's: a socket cannot listen or connect."""


class DistStoreError(RuntimeError):
    """torch.distributed's: not all ranks joined."""


class ValidationError(ValueError):
    """pydantic's, for a value that the parser accepted."""


class EngineDeadError(Exception):
    """The API server's, for every request after the engine has died."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")


for error, module in (
    (OutOfMemoryError, "torch"),
    (SafetensorError, "safetensors._safetensors_rust"),
    (DistNetworkError, "torch.distributed"),
    (DistStoreError, "torch.distributed"),
    (ValidationError, "pydantic_core._pydantic_core"),
    (EngineDeadError, "vllm.v1.engine.exceptions"),
):
    error.__module__ = module
