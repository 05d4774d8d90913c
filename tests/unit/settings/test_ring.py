"""Three nodes in a ring: what a stack file must say, and where each pair of nodes reaches the other."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.rank.argv import serve_argv
from components.rank.env import rank_env
from components.rank.mounts import mounts
from components.settings.base import SettingsError
from components.settings.cluster import ClusterSettings
from components.settings.patches import LOCKS_DIR
from components.settings.ring import PADDING
from tests.unit.stacks import cluster

LINKS = [["192.168.12.1", "192.168.13.1"], ["192.168.12.2", "192.168.23.2"], ["192.168.13.3", "192.168.23.3"]]


def nodes(links: list[list[str]]) -> list[dict[str, Any]]:
    return [
        {"ssh": f"spark-{letter}", "fabric_ip": f"203.0.113.{number}", "links": of_node}
        for number, (letter, of_node) in enumerate(zip("abc", links, strict=True), 1)
    ]


def ring(links: list[list[str]] = LINKS, **more: Any) -> ClusterSettings:
    return cluster(change={"nodes": nodes(links), "engine": {"tensor_parallel_sizes": [2, 3]}, **more})


def test_the_ranks_meet_where_all_nodes_are_and_copy_over_the_link_between_two():
    stack = ring()
    argv = serve_argv(stack, 2)
    assert argv[argv.index("--master-addr") + 1] == "203.0.113.1"
    assert argv[argv.index("--tensor-parallel-size") + 1] == argv[argv.index("--nnodes") + 1] == "3"
    assert rank_env(stack, 2)["VLLM_HOST_IP"] == "203.0.113.3"
    assert stack.link_to_head(1) == ("192.168.12.1", "192.168.12.2")
    assert stack.link_to_head(2) == ("192.168.13.1", "192.168.13.3")


def test_a_worker_reads_over_nfs_from_the_heads_end_of_its_own_link():
    """One address of the head does not reach both workers."""
    stack = ring(checkpoint={"mode": "nfs"})
    options = [mount.volume.options["o"] for mount in mounts(stack, 2, "dev", has_api_key=False) if mount.volume]
    assert [option.partition(",")[0] for option in options] == ["addr=192.168.13.1"]


def test_nccl_pairs_links_by_subnet_in_a_ring_and_a_pair_stays_as_it_is():
    names = {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_SUBNET_PREFIX_LEN": "24", "NCCL_IB_MERGE_NICS": "0"}
    assert names.items() <= rank_env(ring(), 1).items()
    assert not names.keys() & rank_env(cluster(), 1).keys()
    assert cluster().link_to_head(1) == ("198.51.100.1", "198.51.100.2")


@pytest.mark.parametrize(
    ("rank", "links", "complaint"),
    [
        (1, ["192.168.99.2", "192.168.23.2"], "nodes/0/links: no other node has a link in the /24 of 192.168.12.1"),
        (2, ["192.168.13.3"], "nodes/1/links: no other node has a link in the /24 of 192.168.23.2"),
        (2, [], "nodes/0/links: no other node has a link in the /24 of 192.168.13.1"),
        (1, ["192.168.12.1", "192.168.23.2"], "nodes/0/links: 192.168.12.1 is a link of another node too"),
        (2, ["192.168.13.3", "192.168.13.5"], "nodes/2/links: 192.168.13.5 is in the /24 of another link of this node"),
    ],
)
def test_a_link_that_does_not_lead_to_one_other_node_is_refused(rank: int, links: list[str], complaint: str):
    broken = [links if number == rank else own for number, own in enumerate(LINKS)]
    with pytest.raises(SettingsError, match=complaint):
        ring(broken)


def test_two_nodes_that_share_no_link_are_refused_by_name():
    line = [["192.168.12.1"], ["192.168.12.2", "192.168.23.2"], ["192.168.23.3"]]
    with pytest.raises(SettingsError, match=r"nodes/0/links: no link is in the /24 of a link of spark-c: in a ring"):
        ring(line)


def test_three_nodes_need_the_recipes_padding(tmp_path: Path):
    lock = yaml.safe_load((LOCKS_DIR / "mia-c444d703.yaml").read_text())
    row = {"name": "tp3", "file": PADDING, "sha256": "0" * 64, "run": "python3", "why": "three nodes"}
    file = tmp_path / "tp3.yaml"
    file.write_text(yaml.safe_dump({**lock, "patches": [*lock["patches"], row]}))
    patches = {"lock": str(file), "skip": ["vision-exp"]}
    assert len(cluster(change={"nodes": nodes(LINKS), "patches": patches}).nodes) == 3
    with pytest.raises(SettingsError, match=r"64 heads in 8 groups, which 3 does not divide"):
        cluster(change={"nodes": nodes(LINKS)})
