"""The table that a failed `up` quotes from: each row matches lines that people have seen, and no others."""

from collections.abc import Callable
from typing import Any

import pytest

from components.start.troubleshooting import Row, explain, rows
from gid.lookup import resolve
from gid.members import Refusal
from tests.program.pair import document, gid
from tests.unit.start.test_rank_log import START

Node = dict[str, Any]
FABRIC = "No usable GID row, no HCA, or a fabric address that is on no interface"
SEEN = {
    "The engine refuses a flag": [
        "vllm: error: unrecognized arguments: --enable-prompt-tokens-details",
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'nvfp4_ds_mla' (choose from auto, fp8)",
    ],
    '"no such file or directory" for Python or vllm itself, before any line of the rank': [
        # howtospark's helper scripts; as dockerd reports it for an entrypoint
        "/opt/env/bin/python: no such file or directory",
        'could not start: exec: "/opt/env/bin/python": stat /opt/env/bin/python: no such file or directory: unknown',
        "spark: error: vllm is not in this image: compare its digest with the profile's",
        "spark: error: /x.py cannot be written: No such file or directory: image.encoding_target suits another image",
    ],
    '"exec format error", or "no kernel image is available"': [
        "exec /usr/bin/python3: exec format error",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ],
    "A stock vLLM cannot serve this checkpoint": [
        # howtospark, with vLLM 0.24.0
        "RuntimeError: Assertion error (deepgemm-src/csrc/apis/layout.hpp:59): Unknown SF transformation",
        "KeyError: 'model.layers.43.mtp_block.main_norm.weight'",
        "dispatch_scaled_mm, scaled_mm_helper.hpp:17",
    ],
    "The engine has no place for a tensor of the checkpoint": [
        "ValueError: There is no module or parameter named 'vision' in DeepseekV4ForCausalLM. The available parameters",
        "ValueError: There is no module or parameter named 'aligner' in DeepseekV4ForCausalLM",
        "KeyError: 'layers.9.ffn.gate.bias_vl'",
        "KeyError: 'layers.2.ffn.gate.bias'",
        "KeyError: 'model.mtp.0.ffn.gate.bias_vl'",
    ],
    "A worker loses its NFS mount, or cannot mount the head's export": [
        # as after a restart of the head alone
        "OSError: [Errno 116] Stale file handle: '/cache/huggingface/hub/models--x/snapshots/y/model-1.safetensors'",
        "could not start: error while mounting volume '/var/lib/docker/volumes/x/_data': failed to mount local volume: "
        "mount :/home/ops/hub:/x, data: addr=192.168.100.1,nfsvers=4.2: connection refused",
    ],
    "A shard, the index or the prompt encoder is missing, short, or a dangling link": [
        "spark: error: the checkpoint is incomplete: model-00007-of-00048.safetensors is missing: pulumi up fetches it",
        "spark: error: encoding/encoding_dsv4.py is missing in the snapshot: pulumi up fetches it",
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file "
        "not fully covered",
        "FileNotFoundError: No such file or directory: /cache/huggingface/hub/model-00001-of-00048.safetensors",
    ],
    "The engine looks for a file on the hub and may not": [
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "OfflineModeIsEnabled: Cannot reach https://huggingface.co: offline mode is enabled",
    ],
    '"ibv_reg_mr ... Cannot allocate memory"': [
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ],
    "NCCL finds no RDMA device": [
        "head:1:8 [0] net.cc:212 NCCL WARN NET/IB : No device found.",
        'could not start: gathering device information while adding custom device "/dev/infiniband": no such file',
    ],
    FABRIC: [
        "spark: error: no GID row that NCCL can use (RoCE v2, an IPv4 address of the row's own netdev):",
    ],
    '"ibv_modify_qp failed with 110 Connection timed out", between two subnets': [
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state INIT, "
        "next state RTR, local GID index 3, local GID ::ffff:192.168.10.1, remote GID ::ffff:192.168.20.2",
    ],
    'NCCL dies at init with "unhandled system error"': [
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state INIT, "
        "next state RTR, local GID index 3, local GID ::ffff:192.168.10.1, remote GID ::ffff:192.168.10.2",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f1",
    ],
    "Unable to find address for an interface": [
        "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: enP7s7",
    ],
    'Gloo "failed to connect"': [
        # vLLM 0.25.1 on the lab, the worker's link-local address before its fabric address
        "[/pytorch/third_party/gloo/gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, "
        "willRetry=1, retry=1, retryLimit=3, rank=0, size=2, local=[10.0.2.165]:25827, remote=[169.254.7.2]:34713$0, "
        "error=SO_ERROR: Connection timed out, remote=[169.254.7.2]:34713$0",
    ],
    '"Address already in use"': [
        "OSError: [Errno 98] Address already in use",
        "The server socket has failed to listen on any local network address. port: 25000, useIpv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use",
    ],
    '"unresolvable CDI devices"': [
        "could not start: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ],
    'Xid 79, "GPU has fallen off the bus"': [
        "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ],
    "No GPU in the container": [
        "RuntimeError: Failed to infer device type, please set the environment variable",
        'could not start: could not select device driver "" with capabilities: [[gpu]]',
    ],
    'Out of memory while loading, or "Free memory on device ... is less than desired GPU memory utilization"': [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        # howtospark
        "free memory less than desired GPU memory utilization",
        "ValueError: Free memory on device cuda:0 (60.2/121.0 GiB) on startup is less than desired GPU memory "
        "utilization (0.85, 102.9 GiB).",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
        "was killed for lack of memory",
    ],
    '"No available memory for the cache blocks"': [
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ],
    '"To serve at least one request with the model\'s max seq len ..."': [
        "ValueError: To serve at least one request with the model's max seq len (8192), (0.0 GiB KV cache is needed",
    ],
    '"No space left on device" for /psm_...': ["OSError: [Errno 28] No space left on device: '/psm_3f2a91c7'"],
    '"Watchdog caught collective operation timeout"': [
        "[rank0]:[E1201 01:26:49.1 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.",
    ],
    '"RPC call to execute_model timed out"': ["TimeoutError: RPC call to execute_model timed out."],
    "A node answers ping but not SSH": [
        # howtospark calls it "pingable but SSH-dead"
        "cannot be seen any more: the node does not answer any more",
        "cannot be seen any more: ssh: connect to host 203.0.113.7 port 22: Connection timed out",
    ],
    'A rank was killed, or "Worker proc ... died unexpectedly"': [
        "ended with exit code 137",
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
    ],
    "A rank never meets the other": [
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect "
        "to (198.51.100.1, 25000).",
    ],
    '"Connection closed by peer", or "RuntimeError: cancelled" in shm_broadcast': [
        # howtospark
        "RuntimeError: cancelled",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        "[192.168.100.2]:49283",
        "Read error [192.168.100.2]:48817: Connection reset by peer",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed by peer [198.51.100.2].",
        'Failed to check the "should dump" flag on TCPStore, with error: Failed to recv, got 0 bytes. '
        "Connection was likely closed. Did the remote server shutdown or crash?",
    ],
    "A terminal key error about the API key": [
        "the engine is up and refuses our API key: was it started with another one? Change the key and run up",
    ],
}
LINES = [(symptom, line) for symptom, lines in SEEN.items() for line in lines]


def symptom_of(row: Row | None) -> str | None:
    return row.symptom if row else None


@pytest.mark.parametrize(("symptom", "line"), LINES, ids=[line[:50] for _, line in LINES])
def test_a_line_that_people_have_seen_is_explained_by_its_own_row(symptom: str, line: str):
    assert symptom_of(explain([line])) == symptom


def test_every_row_of_the_table_has_a_line_that_it_explains():
    assert [row.symptom for row in rows()] == list(SEEN)


def test_a_row_quotes_the_line_that_it_explains():
    row = explain(SEEN['"ibv_modify_qp failed with 110 Connection timed out", between two subnets'])
    assert row and row.cause.startswith("NCCL pairs 192.168.10.1 with 192.168.20.2, and no path leads")


def test_memory_that_the_kernel_could_not_register_is_not_blamed_on_the_gid_index():
    """NCCL calls both a system error."""
    lines = [
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ]
    assert symptom_of(explain(lines)) == '"ibv_reg_mr ... Cannot allocate memory"'


def test_the_lines_of_a_healthy_start_explain_nothing():
    healthy = [
        *(line for line, _ in START),
        "spark: prompt encoder of the snapshot: copied to /usr/local/lib/python3.12/dist-packages/vllm/tokenizers/x.py",
        "spark: checkpoint deepseek-ai/DeepSeek-V4-Flash-DSpark at 3c5ed1f0: all 48 shards are complete",
        "spark: note: roceP2p1s0f1 port 1, the other half of the QSFP port, could be used too: add it to hca",
        # a client's mistake, not ours
        'INFO:     127.0.0.1:34278 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized',
        # expected, not a fault
        "max_num_scheduled_tokens is set to 8180 based on the speculative decoding settings",
    ]
    assert [line for line in healthy if explain([line])] == []


def no_hca(node: Node) -> None:
    node["hcas"] = []


def down(node: Node) -> None:
    for port in node["hcas"]:
        port.update(state="1: DOWN", rows=[])


def no_address(node: Node) -> None:
    node["interfaces"]["enp1s0f1np1"] = []


def stale(node: Node) -> None:
    node["hcas"][0]["rows"][0]["gid"] = gid("203.0.113.7")


def twins(node: Node) -> None:
    node["hcas"][0]["rows"][0]["index"] = 9


REFUSED: list[tuple[Callable[[Node], None], str | None, object]] = [
    (no_hca, None, "resolve"),
    (no_hca, "=rocep1s0f1", "resolve"),
    (down, None, "resolve"),
    (down, "=rocep1s0f1", "resolve"),
    (no_address, None, "resolve"),
    (stale, None, "resolve"),
    (twins, None, "resolve"),
    (twins, None, 3),
]


@pytest.mark.parametrize(("change", "selector", "gid_index"), REFUSED)
def test_every_refusal_of_the_fabric_is_explained(
    change: Callable[[Node], None], selector: str | None, gid_index: object
):
    node = document(1, 3)
    change(node)
    with pytest.raises(Refusal) as caught:
        resolve(node, "192.168.100.1", selector, gid_index)  # type: ignore[arg-type]
    assert symptom_of(explain([f"spark: error: {str(caught.value).splitlines()[0]}"])) == FABRIC


def test_an_unknown_end_is_not_explained_away():
    assert explain(["CUDA error: an illegal memory access was encountered", "ended with exit code 1"]) is None


@pytest.mark.parametrize("row", rows(), ids=[row.symptom[:40] for row in rows()])
def test_every_row_says_cause_and_way_out(row: Row):
    assert row.cause.endswith(".") and row.fix.endswith(".")
