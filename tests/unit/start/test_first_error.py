"""The exception that made a rank fail, among the tracebacks that every process of vLLM prints after it."""

import pytest

from components.start.first_error import FirstError
from tests.unit.start.ranks import lines_of

WORKER = "(Worker_TP0 pid=24) ERROR 12-01 01:26:51 [multiproc_executor.py:898] "
CORE = "(EngineCore pid=14) ERROR 12-01 01:26:55 [core.py:1231] "


def read(*lines: str) -> FirstError:
    error = FirstError()
    for line in lines:
        error.read(line)
    return error


def test_the_first_exception_is_kept_and_not_its_consequences():
    error = read(*lines_of("c-worker-killed", "head"))
    assert error.fatal
    assert error.text == (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        "[192.168.100.2]:49283"
    )
    assert error.evidence[-1].endswith(error.text), "what follows is a consequence"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("(APIServer pid=1) OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use"),
        ("ERROR 12-01 01:32:37 [multiproc_executor.py:898] ValueError: Available", "ValueError: Available"),
        ("[rank1]: RuntimeError: CUDA error", "RuntimeError: CUDA error"),
        ("Exception: WorkerProc initialization failed", "Exception: WorkerProc initialization failed"),
        ("vllm serve: error: argument --x: invalid choice", "vllm serve: error: argument --x: invalid choice"),
        ("(APIServer pid=1) ERROR 12-01 01:04:55 [serving.py:222] Error with model error=ErrorInfo(message='x')", None),
        (
            "(Worker_TP0 pid=24) ERROR 12-01 01:26:51 [parallel_state.py:2205] Error ignored in is_in_the_same_node: x",
            None,
        ),
        ("(Worker pid=24) WARNING 12-01 01:26:51 [x.py:1] ImportError: no module, which is fine", None),
        ("  warnings.warn('resource_tracker: There appear to be 1 leaked')", None),
    ],
)
def test_an_exception_is_known_behind_every_prefix_of_the_engine(line: str, text: str | None):
    assert read(line).text == text


@pytest.mark.parametrize(
    "last",
    [
        "AssertionError",
        "torch._dynamo.exc.Unsupported: call_function",
        "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
        "torch._inductor.config.cpp.cxx: (None, 'g++')",
    ],
)
def test_whatever_a_traceback_ends_with_is_its_exception(last: str):
    error = read(
        f"{WORKER}WorkerProc failed to start.",
        f"{WORKER}Traceback (most recent call last):",
        f'{WORKER}  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/executor/multiproc_executor.py", line 865',
        "[W1201 01:26:46.059586865 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved.",
        f"{WORKER}    worker = WorkerProc(*args, **kwargs)",
        f"{WORKER}{last}",
        f"{CORE}EngineCore failed to start.",
        f"{CORE}Traceback (most recent call last):",
        f"{CORE}Exception: WorkerProc initialization failed due to an exception in a background process.",
    )
    assert error.text == last


def test_an_exception_that_did_not_end_the_engine_is_not_the_cause():
    error = read(
        "ModuleNotFoundError: No module named 'deep_ep'",
        f"{WORKER}WorkerProc failed to start.",
        f"{WORKER}torch.OutOfMemoryError: CUDA out of memory.",
    )
    assert error.text == "torch.OutOfMemoryError: CUDA out of memory."


def test_the_cause_above_the_exception_and_the_rest_of_its_message_count_and_nothing_after_them():
    warning = "head:1:8 [0] misc/ibvwrap.cc:329 NCCL WARN Call to ibv_modify_qp failed with 61 No data available"
    error = read(
        warning,
        f"{WORKER}WorkerProc failed to start.",
        f"{WORKER}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error",
        f"{WORKER}Last error:",
        f"{WORKER}Call to ibv_modify_qp failed with 110 Connection timed out",
        f"{CORE}RuntimeError: cancelled",
        f"{WORKER}Traceback (most recent call last):",
        f"{WORKER}RuntimeError: Connection closed by peer",
    )
    assert error.evidence[0] == warning
    assert error.evidence[-1] == f"{WORKER}Call to ibv_modify_qp failed with 110 Connection timed out"
