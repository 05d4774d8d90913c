"""A healthy pair as facts documents, for tests that change one thing about it."""

import json
from typing import Any

from components.facts.node_facts import NodeFacts, parse
from facts.document import BEGIN, END

GID = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}"
MIB_KB = 1024


def gid(ip: str) -> str:
    return GID.format(*map(int, ip.split(".")))


def hca(name: str, netdev: str, pci: str, rows: dict[int, str]) -> dict[str, Any]:
    return {
        "name": name,
        "port": 1,
        "state": "4: ACTIVE",
        "link_layer": "Ethernet",
        "netdev": netdev,
        "pci": pci,
        "rows": [{"index": i, "gid": gid(ip), "type": "RoCE v2", "ndev": netdev} for i, ip in rows.items()],
    }


def document(number: int, index: int, *, arch: str = "aarch64") -> dict[str, Any]:
    """Node `number` (1 is the head) with its fabric rows at `index`."""
    first, second = f"192.168.100.{number}", f"192.168.101.{number}"
    return {
        "boot_id": f"boot-{number}",
        "kernel": "6.17.0-1032-nvidia",
        "machine": arch,
        "os": "DGX OS 7",
        "kho_off": False,
        "user": "ops",
        "memory": {"MemTotal": 121 << 20, "MemAvailable": 117 << 20, "CmaTotal": 0, "CmaFree": 0},
        "interfaces": {
            "enp1s0f1np1": [{"ip": first, "prefix": 24}],
            "enP2p1s0f1np1": [{"ip": second, "prefix": 24}],
        },
        "hcas": [
            hca("rocep1s0f1", "enp1s0f1np1", "0000:01:00.1", {index: first}),
            hca("roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1", {index: second}),
        ],
        "docker": {"status": "ok", "version": "28.5.2", "api_version": "1.51", "storage_driver": "overlay2"},
        "containers": [],
        "image": {"present": True, "architecture": None, "env": []},
        "listeners": [],
        "gpu": {"driver": "580.159.03", "apps": []},
        "disk": {
            "hf_cache": {"path": "/home/ops/.cache/huggingface", "free_bytes": 900 << 30},
            "docker_root": {"path": "/var/lib/docker", "free_bytes": 900 << 30},
        },
        "checkpoint": {"gaps": [], "bytes_present": 156 << 30},
        "earlyoom": False,
        "folder": True,
        "problems": [],
    }


def healthy(arch: str = "aarch64") -> list[dict[str, Any]]:
    """Head and worker, whose GID indexes differ."""
    return [document(1, 3, arch=arch), document(2, 6, arch=arch)]


def typed(document: dict[str, Any]) -> NodeFacts:
    return parse(f"{BEGIN}\n{json.dumps(document)}\n{END}\n")


def rank_container(stack: str, rank: int, **changed: Any) -> dict[str, Any]:
    """A live rank of a stack as facts report it; `spec` and `generation` set the labels of that name."""
    labels = {
        "spark.stack": stack,
        "spark.rank": str(rank),
        "spark.generation": changed.pop("generation", "aaaa1111"),
        "spark.spec": changed.pop("spec", "feedfeedfeed"),
    }
    base = {"id": f"{rank}" * 64, "name": f"spark-{stack}-rank{rank}", "labels": labels, "running": True, "gpu": True}
    return {**base, **changed}
