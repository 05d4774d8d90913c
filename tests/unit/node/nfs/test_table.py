"""What an NFS server exports, read from its table, and the text of ours."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfs.table import admits, device_of, escaped, exports_to, our_text, parse, paths_of, unescaped
from tests.unit.characters import ANY

HUB = "/home/spark/.cache/huggingface/hub"
# as exportfs of nfs-utils 2.8 keeps it
ETAB = (
    f"{HUB}\t192.168.100.2(ro,sync,wdelay,hide,nocrossmnt,secure,root_squash,no_all_squash,no_subtree_check,"
    "secure_locks,acl,no_pnfs,fsid=fb163ccf3f965301ad796906a2ab263c,anonuid=65534,anongid=65534,sec=sys,ro,secure)\n"
    "/srv/my\\040films\t*(rw,sync,fsid=7)\n"
    "/srv/my\\040films\ttv.lan(ro)\n"
)
PATHS = st.lists(
    st.text(st.characters(exclude_characters="/\0\n", exclude_categories=["Cs"]), min_size=1, max_size=9), min_size=1
).map(lambda parts: "/" + "/".join(parts))


def test_the_servers_table_is_read_by_path_and_client():
    table = parse(ETAB)
    assert set(table) == {HUB, "/srv/my films"}
    assert set(table["/srv/my films"]) == {"*", "tv.lan"} and "rw" in table["/srv/my films"]["*"]
    assert exports_to(table, HUB, ["192.168.100.2"])


@given(st.text(ANY, max_size=80))
def test_no_text_in_the_tables_place_breaks_the_reading(text: str):
    assert all(path.startswith("/") for path in parse(text)) and isinstance(paths_of(text), list)


@given(PATHS)
def test_every_path_comes_back_as_it_was_written(path: str):
    assert unescaped(escaped(path)) == path
    assert paths_of(our_text("dev", path, ["192.168.100.2"], mounts_inside=False)) == [path]


def test_paths_of_a_file_are_those_of_its_lines_and_of_no_comment():
    text = '# /old *(ro)\n\n"/srv/my films" *(ro)\n  /data \\\n  tv(ro) /not/this\n/a\\040b *(ro)\n'
    assert paths_of(text) == ["/srv/my films", "/data", "/a b"]


@pytest.mark.parametrize("client", ["192.168.100.2", "192.168.100.0/24", "192.168.100.0/255.255.255.0", "*"])
def test_an_address_is_let_in_by_itself_its_network_and_everybody(client: str):
    assert admits(client, "192.168.100.2")


@pytest.mark.parametrize("client", ["192.168.100.22", "192.168.101.0/24", "worker.lan", "*.lan", "@spark", ""])
def test_an_address_is_let_in_by_nothing_else_that_can_be_read_off(client: str):
    assert not admits(client, "192.168.100.2")


def test_a_tree_is_exported_only_when_every_worker_gets_exactly_it():
    table = parse(f"{HUB}\t192.168.100.2(ro)\n")
    assert not exports_to(table, HUB, ["192.168.100.2", "192.168.100.3"])
    assert not exports_to(table, HUB + "/models--a--b", ["192.168.100.2"])
    assert not exports_to(table, str(Path(HUB).parent), ["192.168.100.2"])


@pytest.mark.parametrize(
    ("root", "device"),
    [(None, f":{HUB}"), (HUB, ":/"), ("/home/spark", ":/.cache/huggingface/hub"), ("/srv", f":{HUB}")],
)
def test_a_tree_below_an_nfs_4_root_is_mounted_by_its_path_there(root: str | None, device: str):
    """Someone's own export of the tree may be, or lie below, the one with fsid=0."""
    table = parse(ETAB)
    if root:
        table.setdefault(root, {})["*"] = ["ro", "fsid=0"]
    assert device_of(table, HUB) == device


def test_ours_is_read_only_for_named_addresses_with_root_squashed():
    line = our_text("dev", HUB, ["192.168.100.2", "192.168.100.3"], mounts_inside=False).splitlines()[-1]
    path, *entries = line.split()
    assert path == HUB and [entry.partition("(")[0] for entry in entries] == ["192.168.100.2", "192.168.100.3"]
    for entry in entries:
        options = entry.partition("(")[2].rstrip(")").split(",")
        assert {"ro", "sync", "root_squash", "no_subtree_check"} <= set(options)
        assert not {"rw", "no_root_squash", "fsid=0", "crossmnt"} & set(options)


def test_a_trees_identity_is_its_own_and_stays():
    """A handle that a worker holds must mean the same file after the head has booted again."""

    def identity(tree: str) -> str:
        return our_text("dev", tree, ["192.168.100.2"], mounts_inside=False).partition("fsid=")[2][:32]

    assert identity(HUB) == identity(HUB) != identity("/raid/hub") and len(identity(HUB)) == 32


def test_mounts_inside_are_crossed_and_keep_their_own_identities():
    """With one fsid for all, a worker of the lab got stale handles for a folder that was bound into the tree."""
    text = our_text("dev", HUB, ["192.168.100.2"], mounts_inside=True)
    assert "crossmnt" in text and "fsid" not in text
