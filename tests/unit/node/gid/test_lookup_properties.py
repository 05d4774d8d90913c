"""What holds of any selector, any GID text and any table."""

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gid.lookup import Refusal, Resolution, resolve
from gid.members import parse_selector
from gid.table import Address, Port, Row, Table, ipv4_of, objection, usable_rows
from tests.unit.characters import ANY
from tests.unit.node.node_tree import LINK_LOCAL, V1, V2, gid_of

# --- selectors ---

NAMES = ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"]
PICKED = {
    "=rocep1s0f1,roceP2p1s0f1": NAMES[1:],
    "rocep1s0f1:1": ["rocep1s0f1"],
    "rocep1s0f1:2": [],
    "roce": NAMES,
    "rocep": NAMES[:2],
    "=roce": [],
    "^rocep1s0f0": NAMES[1:],
    "^=rocep1s0f0": NAMES[1:],
    "^=rocep1s0f": NAMES,
    "^roce": [],
    "^rocep1s0f0:2": NAMES,
    ",".join(["x"] * 31) + ",rocep1s0f1": ["rocep1s0f1"],
}
ODD = [":08", ":010", ":8abc", ":abc", ":", ":0", ":-1", ":+2", ":1:7", ":65536", "\n", " ", "*", "a" * 64]


def port(name: str, number: int = 1) -> Port:
    return Port(name=name, port=number, state=None, link_layer=None, netdev=None, pci=None, rows=[])


def test_the_selectors_of_the_reports_pick_these():
    assert {text: [name for name in NAMES if parse_selector(text).picks(port(name))] for text in PICKED} == PICKED


@pytest.mark.parametrize(
    "text", ["", "^", "=", "=^a", "a,,b", ",a", "é", ",".join(["x"] * 33), *(f"rocep1s0f1{odd}" for odd in ODD)]
)
def test_a_selector_that_nccl_reads_otherwise_than_a_person_is_refused_with_the_grammar(text):
    with pytest.raises(Refusal, match=re.escape(f"hca {text!r} is not a selector: write [^][=]name[:port],...")):
        parse_selector(text)


@given(
    st.from_regex(r"\^?=?[a-c]{1,3}(:[1-3])?(,[a-c]{1,3}(:[1-3])?){0,3}", fullmatch=True, alphabet=ANY) | st.text(ANY)
)
def test_a_selector_is_read_as_it_is_written_or_refused(text):
    try:
        exclude, exact, names = parse_selector(text)
    except Refusal:
        return
    spelled = ",".join(f"{name.text}:{name.port}" if name.port else name.text for name in names)
    assert "^" * exclude + "=" * exact + spelled == text


# --- GIDs ---


@given(st.text(ANY))
def test_any_text_is_an_ipv4_gid_or_not(text):
    ipv4_of(text)


@given(st.ip_addresses(v=4).map(str))
def test_the_kernels_text_of_a_mapped_address_is_read_back(ip):
    assert ipv4_of(gid_of(ip)) == ip


@given(st.ip_addresses(v=6))
def test_only_a_mapped_address_is_ipv4(ip):
    assert ipv4_of(ip.exploded) == (str(ip.ipv4_mapped) if ip.ipv4_mapped else None)


# --- tables ---

FABRIC = "198.51.100.1"
NETDEVS = ["en0", "en1", "en2"]
IPS = [FABRIC, "198.51.100.9", "203.0.113.1", "203.0.113.9", "192.0.2.1", "192.0.2.9"]
texts = st.sampled_from([*map(gid_of, IPS), LINK_LOCAL, "2001:db8::1"])
rows = st.dictionaries(st.integers(0, 5), st.tuples(texts, st.sampled_from([V1, V2, V2, V2]), st.integers(0, 8)))


@st.composite
def tables(draw):
    """Up to three HCAs, each with sound rows among the others; the first holds the fabric address."""
    interfaces: dict[str, list[Address]] = {}
    hcas: list[Port] = []
    for number in range(draw(st.integers(1, 3))):
        netdev = NETDEVS[number]
        ips = IPS[2 * number : 2 * number + 2]
        interfaces[netdev] = [{"ip": ip, "prefix": 24} for ip in ips]
        filled: list[Row] = [
            {"index": index, "gid": gid, "type": kind, "ndev": NETDEVS[other] if other < 3 else netdev}
            for index, (gid, kind, other) in draw(rows).items()
        ]
        sound = draw(st.lists(st.integers(6, 8), min_size=1, max_size=2, unique=True))
        filled += [{"index": i, "gid": gid_of(ips[n]), "type": V2, "ndev": netdev} for n, i in enumerate(sound)]
        state = "4: ACTIVE" if number == 0 else draw(st.sampled_from(["4: ACTIVE", "4: ACTIVE", "1: DOWN"]))
        hcas.append(
            {
                "name": ["rocep1s0f1", "roceP2p1s0f1", "rocep1s0f0"][number],
                "port": 1,
                "state": state,
                "link_layer": "Ethernet",
                "netdev": netdev,
                "pci": None,
                "rows": filled,
            }
        )
    return Table(hcas=hcas, interfaces=interfaces)


choices = st.sampled_from([None, "roce", "=rocep1s0f1", "^rocep1s0f0"])


def outcome(table: Table, selector: str | None, gid_index: str | int = "resolve") -> Resolution | str:
    """The resolution, or the first line of the refusal."""
    try:
        return resolve(table, FABRIC, selector, gid_index)
    except Refusal as refusal:
        return str(refusal).splitlines()[0]


@given(tables(), choices)
def test_a_resolved_index_is_usable_on_every_member_and_may_be_forced(table, selector):
    resolution = outcome(table, selector)
    if isinstance(resolution, str):
        assert resolution.startswith("no GID index is usable on every HCA")
        assert not isinstance(outcome(table, selector, "unset"), str)
        forced = [str(outcome(table, selector, index)) for index in range(9)]
        assert all(f"gid_index {index} is not usable on every HCA" in reason for index, reason in enumerate(forced))
        return
    ports = {port["name"]: port for port in table["hcas"]}
    for member in resolution["members"]:
        port = ports[member["hca"]]
        assert port["state"] == "4: ACTIVE"
        assert member["usable"] == [row["index"] for row in usable_rows(port, table["interfaces"])]
        assert resolution["gid_index"] in member["usable"]
    assert resolution["gid_index"] is not None and outcome(table, selector, resolution["gid_index"]) == resolution
    unset = outcome(table, selector, "unset")
    assert not isinstance(unset, str)
    assert {**unset, "notes": []} == {**resolution, "gid_index": None, "notes": []}


@given(tables(), choices, st.randoms(use_true_random=False))
def test_the_order_of_ports_rows_and_interfaces_does_not_matter(table, selector, random):
    shuffled = copy.deepcopy(table)
    random.shuffle(shuffled["hcas"])
    for port in shuffled["hcas"]:
        random.shuffle(port["rows"])
    shuffled["interfaces"] = dict(sorted(table["interfaces"].items(), reverse=True))
    assert outcome(shuffled, selector) == outcome(table, selector)


@given(tables(), choices, texts, st.sampled_from([V1, V2, None]), st.sampled_from([*NETDEVS, "gone", None]))
def test_a_row_that_cannot_be_used_never_changes_the_choice(table, selector, gid, kind, ndev):
    row: Row = {"index": 9, "gid": gid, "type": kind, "ndev": ndev}
    if objection(row, table["interfaces"]) is None:
        row["type"] = V1
    more = copy.deepcopy(table)
    for port in more["hcas"]:
        port["rows"].append(row)
    before, after = outcome(table, selector), outcome(more, selector)
    if isinstance(before, str) or isinstance(after, str):
        assert before == after
    else:
        assert {**after, "table_digest": ""} == {**before, "table_digest": ""}
        assert after["table_digest"] != before["table_digest"]
