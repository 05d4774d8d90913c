"""Mistakes in a stack file, each with the one line that must refuse it."""

from collections.abc import Mapping
from typing import Any

from tests.unit.stacks import NODES, node


def engine(**values: object) -> dict[str, Any]:
    return {"engine": values}


def fabric(**values: object) -> dict[str, Any]:
    return {"fabric": values}


def nccl(**values: object) -> dict[str, Any]:
    return {"fabric": {"nccl": values}}


THIRD = {"ssh": "ops@spark-c.example.net", "fabric_ip": "198.51.100.3"}
SINGLE_MISTAKES: list[tuple[Mapping[str, Any], str]] = [
    # a key that nothing reads
    ({"enginee": {}}, "enginee: unknown key: check its spelling, or remove it"),
    (engine(max_num_seq=4), "engine/max_num_seq: unknown key: check its spelling, or remove it"),
    (node(1, fabric_ipp="x"), "nodes/1/fabric_ipp: unknown key: check its spelling, or remove it"),
    ({"image": {"tag": "x"}}, "image/tag: unknown key: check its spelling, or remove it"),
    ({"int": 1}, "int: unknown key: check its spelling, or remove it"),
    ({"a\nb": 1}, "a\\nb: unknown key: check its spelling, or remove it"),
    # what moves: a branch, a tag
    (
        {"checkpoint": {"revision": "main"}},
        "checkpoint/revision: 'main' is not a commit: branches move, so give its 40 hex digits "
        "(`git ls-remote https://huggingface.co/OWNER/NAME main` prints them)",
    ),
    (
        {"image": {"reference": "ghcr.io/anemll/dspark-vllm-gx10:0.1.1"}},
        "image/reference: 'ghcr.io/anemll/dspark-vllm-gx10:0.1.1' has no @sha256: digest, so the two nodes could run "
        "different images: add the digest (`docker buildx imagetools inspect IMAGE` prints it)",
    ),
    # left over from an example
    (
        node(0, ssh="CHANGEME"),
        "nodes/0/ssh: 'CHANGEME' is a placeholder from an example: put this node's own value here",
    ),
    (
        node(0, ssh="ops@head-roce-ip"),
        "nodes/0/ssh: 'ops@head-roce-ip' is a placeholder from an example: put this node's own value here",
    ),
    (
        node(0, ifname="enpXsYfZ"),
        "nodes/0/ifname: 'enpXsYfZ' is a placeholder from an example: put this node's own value here",
    ),
    # an SSH target where an address belongs, and what is not an address
    (
        node(1, fabric_ip="ops@198.51.100.2"),
        "nodes/1/fabric_ip: must be an IPv4 address alone, such as 192.168.100.1, found 'ops@198.51.100.2'",
    ),
    (
        node(1, fabric_ip="198.51.100.999"),
        "nodes/1/fabric_ip: must be an IPv4 address alone, such as 192.168.100.1, found '198.51.100.999'",
    ),
    (
        node(1, fabric_ip="2001:db8::2"),
        "nodes/1/fabric_ip: must be an IPv4 address alone, such as 192.168.100.1, found '2001:db8::2'",
    ),
    (node(1, fabric_ip=10), "nodes/1/fabric_ip: must be an IPv4 address alone, such as 192.168.100.1, found '10'"),
    (
        node(1, fabric_ip="127.0.0.1"),
        "nodes/1/fabric_ip: 127.0.0.1 is not an address of a QSFP link: give the IPv4 of this node's fabric netdev",
    ),
    # the NFS export names each worker's address, and this one is everybody's
    (
        node(1, fabric_ip="255.255.255.255"),
        "nodes/1/fabric_ip: 255.255.255.255 is not an address of a QSFP link: "
        "give the IPv4 of this node's fabric netdev",
    ),
    (
        node(1, ssh="ops@worker:99999"),
        "nodes/1/ssh: 'ops@worker:99999' is not an SSH target: "
        "write user@host, user@host:port or an alias of your SSH config "
        "(for a user with @ or an address with a zone, an alias with User and HostName)",
    ),
    (
        node(1, ssh="-oProxyCommand=touch x"),
        "nodes/1/ssh: '-oProxyCommand=touch x' is not an SSH target: "
        "write user@host, user@host:port or an alias of your SSH config "
        "(for a user with @ or an address with a zone, an alias with User and HostName)",
    ),
    (
        {"checkpoint": {"endpoint": "https://ann:hf_x@hub.example.net"}},
        "checkpoint/endpoint: has a user or a password in it, which everyone on a node could read: name the hub alone, "
        "and give its token with pulumi config set --secret hf_token",
    ),
    (
        node(1, hf_cache="/raid/../etc"),
        "nodes/1/hf_cache: '/raid/../etc' is not a path on the node: start it with / or ~/",
    ),
    (node(1, hf_cache="./cache"), "nodes/1/hf_cache: './cache' is not a path on the node: start it with / or ~/"),
    # an index that NCCL would read as another number
    *(
        (
            fabric(gid_index=value),
            f"fabric/gid_index: {value!r} is not a GID index: use resolve, pin, unset or a plain number such as 3",
        )
        for value in ("08", "010", "0x3", "3abc", "3", "", None, [3], 3.5)
    ),
    *(
        (fabric(gid_index=value), f"fabric/gid_index: {value!r} is not a GID index: a table has rows 0 to 1023")
        for value in (-1, 1024, True, False)
    ),
    # the pair
    (node(1, fabric_ip="198.51.100.1"), "nodes: two nodes have fabric_ip 198.51.100.1: each Spark needs its own"),
    (
        node(1, ssh="ops@spark-a.example.net"),
        "nodes: two nodes have ssh ops@spark-a.example.net: each Spark needs its own",
    ),
    (
        {"nodes": [*NODES, THIRD]},
        "nodes: 3 nodes: the model has 64 heads in 8 groups, which 3 does not divide. The recipe pads them to 72 in 9 "
        "with tp3/apply_tp3_patch.py (pull request 196), which the patches of this stack do not run: set "
        "patches.lock to a lock that has it (docs/three_nodes.md shows the row to add), or list 2 nodes",
    ),
    (
        {"nodes": [*NODES, THIRD, {"ssh": "d", "fabric_ip": "198.51.100.4"}]},
        "nodes: 4 nodes, but profile 0731 is tested with 2: list 2",
    ),
    ({"nodes": []}, "nodes: must have at least 2 items, not 0, found []"),
    ({"nodes": {}}, "nodes: must be a valid list, found {}"),
    ({"nodes": [NODES[0], "b"]}, "nodes/1: must be a mapping, found 'b'"),
    ({"profile": "dsparkk"}, "profile: there is no profile 'dsparkk': use one of 0731, dspark, vision-exp"),
    ({"profile": None}, "profile: missing: use one of 0731, dspark, vision-exp"),
    ({"profile": ["dspark"]}, "profile: there is no profile ['dspark']: use one of 0731, dspark, vision-exp"),
    # the engine
    (
        engine(num_speculative_tokens=4),
        "engine/num_speculative_tokens: 4 does not suit this checkpoint's drafter: the drafter works in blocks of 5, "
        "which a smaller number cuts short without a word: use 5",
    ),
    (
        engine(max_model_len=2_000_000),
        "engine/max_model_len: 2,000,000 is beyond the 1,048,576 positions that the model has: use at most those",
    ),
    (
        engine(draft_sample_method='greedy","x":"y'),
        "engine/draft_sample_method: must be 'probabilistic' or 'greedy', found 'greedy\",\"x\":\"y'",
    ),
    (engine(default_thinking="on"), "engine/default_thinking: must be 'off', 'low', 'high' or 'max', found 'on'"),
    (engine(default_thinking=True), "engine/default_thinking: must be 'off', 'low', 'high' or 'max', found True"),
    (engine(limit_mm_per_prompt={"video": 1}), "engine/limit_mm_per_prompt/video: must be 'image', found 'video'"),
    (engine(max_num_seqs="six"), "engine/max_num_seqs: must be a valid integer, found 'six'"),
    (engine(max_num_seqs=0), "engine/max_num_seqs: must be greater than or equal to 1, found 0"),
    (engine(gpu_memory_utilization=85), "engine/gpu_memory_utilization: must be less than 1, found 85"),
    (engine(port=25000), "engine/port: 25000 is also the rendezvous port: give master_port or port another number"),
    ({"engine": None}, "engine: must be a mapping, found None"),
    ({"engine": "x" * 200}, f"engine: must be a mapping, found '{'x' * 76}..."),
    (
        engine(served_model_name=["a b"]),
        "engine/served_model_name: 'a b' cannot be a served model name: use letters, digits and ._/:-",
    ),
    (
        engine(host="--api-key"),
        "engine/host: '--api-key' is not an address to bind: give an IP address or a host name",
    ),
    (
        engine(host="0.0.0.0"),
        "engine/host: 0.0.0.0 opens the API to the network without a key: set one (pulumi config set --secret "
        "api_key ...), bind 127.0.0.1, or set engine.allow_unauthenticated_lan: true",
    ),
    (
        engine(host="::"),
        "engine/host: :: opens the API to the network without a key: set one (pulumi config set --secret "
        "api_key ...), bind 127.0.0.1, or set engine.allow_unauthenticated_lan: true",
    ),
    # NCCL's variables
    (
        nccl(NCCL_GIN_ENABLE=""),
        "fabric/nccl: NCCL_GIN_ENABLE is empty, which hides /etc/nccl.conf: write null to unset it",
    ),
    (nccl(NCCL_GIN_ENABLE=[0]), "fabric/nccl/NCCL_GIN_ENABLE: must be text, a number or null, found [0]"),
    (
        nccl(NCCL_IB_GID_INDEX=3),
        "fabric/nccl: NCCL_IB_GID_INDEX differs between the nodes, so the program sets it: use fabric.gid_index",
    ),
    (
        nccl(NCCL_IB_HCA="x"),
        "fabric/nccl: NCCL_IB_HCA differs between the nodes, so the program sets it: use nodes[].hca",
    ),
    (
        nccl(NCCL_SOCKET_IFNAME="x"),
        "fabric/nccl: NCCL_SOCKET_IFNAME differs between the nodes, so the program sets it: use nodes[].ifname, "
        "or nodes[].socket_ifnames.nccl",
    ),
    (nccl(VLLM_X=1), "fabric/nccl: 'VLLM_X' is not an NCCL variable: other variables go into engine.extra_env"),
    # environment and arguments written by hand
    *(
        (
            engine(extra_env={name: "x"}),
            f"engine/extra_env: {name} looks like a secret, and a container's environment is readable: "
            "use a stack secret",
        )
        for name in ("HF_TOKEN", "VLLM_API_KEY", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY")
    ),
    (engine(extra_env={"NCCL_X": 1}), "engine/extra_env: NCCL_X belongs in fabric.nccl"),
    (engine(extra_env={"X": ""}), "engine/extra_env: X is empty: write null to unset it"),
    (
        engine(extra_env={"a=b": "x"}),
        "engine/extra_env: 'a=b' is not a name for an environment variable: use letters, digits and _",
    ),
    (engine(extra_env={"X": [1]}), "engine/extra_env/X: must be text, a number or null, found [1]"),
    (
        engine(extra_env={"GLOO_SOCKET_IFNAME": "eth0"}),
        "engine/extra_env: GLOO_SOCKET_IFNAME differs between the nodes, so the program sets it: use nodes[].ifname, "
        "or nodes[].socket_ifnames.gloo",
    ),
    (
        engine(extra_env={"HF_HOME": "/elsewhere"}),
        "engine/extra_env: HF_HOME: the node's hub cache is mounted there: use nodes[].hf_cache",
    ),
    (
        engine(extra_env={"HF_HUB_OFFLINE": 0}),
        "engine/extra_env: HF_HUB_OFFLINE: a rank reads the checkpoint that was verified on its node, and never a hub",
    ),
    (
        engine(extra_env={"VLLM_HOST_IP": "198.51.100.1"}),
        "engine/extra_env: VLLM_HOST_IP differs between the nodes, so the program sets it: use nodes[].fabric_ip",
    ),
    *(
        (
            engine(extra_args=arguments),
            f"engine/extra_args: {flag} would show a secret to everyone on the node: "
            "use pulumi config set --secret api_key",
        )
        for arguments, flag in (
            (["--api-key", "k"], "--api-key"),
            (["--api-key=k"], "--api-key"),
            (["--api_key", "k"], "--api-key"),
            (["--api-ke", "k"], "--api-ke"),
            (["--hf-token", "k"], "--hf-token"),
        )
    ),
    (engine(extra_args=["--port", "1"]), "engine/extra_args: --port is a setting of its own: use engine.port"),
    (
        engine(extra_args=["--max_num_seqs=1"]),
        "engine/extra_args: --max-num-seqs is a setting of its own: use engine.max_num_seqs",
    ),
    (
        engine(extra_args=["--max-num-partial-prefills", "2"]),
        "engine/extra_args: the engine of the pinned image refuses --max-num-partial-prefills: remove it",
    ),
    *(
        (engine(extra_args=arguments), f"engine/extra_args: {complaint}")
        for arguments, complaint in (
            # vLLM's parser takes all of these for flags that the program sets
            (
                ["--no-enable-prefix-caching"],
                "the program sets --enable-prefix-caching for every rank: remove --no-enable-prefix-caching",
            ),
            (["-tp", "1"], "-tp is a short form: write the flag's whole name"),
            (
                ["--kv-cache-memory", "1"],
                "--kv-cache-memory, which vLLM takes for --kv-cache-memory-bytes, is a setting of its own: "
                "use engine.kv_cache_memory_bytes",
            ),
            (
                ["--gpu-memory-util=0.95"],
                "--gpu-memory-util, which vLLM takes for --gpu-memory-utilization, is a setting of its own: "
                "use engine.gpu_memory_utilization",
            ),
            (
                ["--speculative-config.num_speculative_tokens", "1"],
                "the program sets --speculative-config for every rank: remove it, "
                "and use engine.num_speculative_tokens and engine.draft_sample_method",
            ),
            (
                ["--config", "x.yaml"],
                "--config would bring in flags that no preview shows: write them as settings or in extra_args",
            ),
            (
                ["--nnodes", "3", "--port", "1"],
                "the program sets --nnodes for every rank: remove it, and use the list of nodes; "
                "--port is a setting of its own: use engine.port",
            ),
        )
    ),
    (engine(extra_args="--x"), "engine/extra_args: must be a valid list, found '--x'"),
    (engine(extra_args=[1]), "engine/extra_args/0: must be a valid string, found 1"),
    (
        {"allow": ["everything"]},
        "allow/0: must be 'memory', 'kernel', 'foreign_gpu', 'high_utilization', 'docker_api' or 'other_image', "
        "found 'everything'",
    ),
    ({"facts": "of"}, "facts: must be 'on' or 'off', found 'of'"),
]
