"""What holds of any selector, any GID text and any table."""

import copy

from hypothesis import example, given
from hypothesis import strategies as st

from gid.lookup import Refusal, Resolution, resolve
from gid.members import parse_selector, port_number
from gid.table import Interface, Port, Row, Table, ipv4_of, objection, usable_rows
from tests.unit.node.node_tree import LINK_LOCAL, V1, V2, gid_of

NAMES = ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1", "mlx5_1", "mlx5_10", "a" * 63, "a" * 63 + "b"]
PORTS = [1, 2, 8, 10, 0x7FFFFFFF]

# --- selectors ---


def c_selector(text: str, name: str, port: int) -> bool:
    """NCCL's own way, a byte at a time: does this NCCL_IB_HCA open the port?"""
    data, at = text.encode("utf-8", "surrogatepass") + b"\0", 0
    inverted = data[at] == ord("^")
    at += inverted
    exact = data[at] == ord("=")
    at += exact
    kept: list[tuple[bytes, int]] = []
    while len(kept) < 32:
        start = at
        while data[at] not in b":,\0":
            at += 1
        prefix, number = data[start:at], -1
        if data[at] == ord(":"):
            at += 1
            start = at
            while data[at] not in b":,\0":
                at += 1
            if at > start:
                number = c_atoi(data[start:at])
            while data[at] not in b",\0":
                at += 1
        if prefix:
            kept.append((prefix[:63], number))
        if data[at] == 0:
            break
        at += 1
    raw = name.encode()
    hit = not kept or any((raw == p if exact else raw[: len(p)] == p) and n in (-1, port) for p, n in kept)
    return hit != inverted


def c_atoi(data: bytes) -> int:
    """atoi, except that a number that no int holds is no port."""
    at = 0
    while at < len(data) and data[at] in b" \t\n\v\f\r":
        at += 1
    negative = data[at : at + 1] == b"-"
    at += data[at : at + 1] in (b"-", b"+")
    value = 0
    while at < len(data) and ord("0") <= data[at] <= ord("9"):
        value, at = value * 10 + data[at] - ord("0"), at + 1
    return 0 if value > 0x7FFFFFFF else -value if negative else value


FIELDS = [":", ":1", ":08", ":010", ":8abc", ":abc", ":-1", ":+2", ": \t1", ":\v2", "::1", ":2147483647", ":4294967295"]
pieces = st.sampled_from(
    [*NAMES, *(name[:5] for name in NAMES), *FIELDS, ":18446744073709551615", "", "=", "^", "*", " ", "é", "a" * 70]
)
selectors = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "^", "=", "^=", "=^"]),
        st.lists(st.lists(pieces, max_size=3).map("".join), max_size=36).map(",".join),
    ),
)


@given(selectors | st.text(st.characters(exclude_characters="\0")))
def test_a_selector_picks_what_nccl_would_open(text):
    selector = parse_selector(text)
    for name in NAMES:
        for port in PORTS:
            assert selector.picks(name, port) == c_selector(text, name, port)


@given(st.text())
def test_any_text_is_a_selector(text):
    selector = parse_selector(text)
    assert len(selector.tokens) <= 32
    assert all(0 < len(token.name) <= 63 for token in selector.tokens)


@example(2**31 - 1)
@example(2**31)
@example(2**32 - 1)
@example(2**64 - 1)
@given(st.integers(0, 10**25))
def test_a_port_number_never_turns_into_any_port(number):
    assert port_number(str(number)) == (number if number < 2**31 else 0)


def test_the_selectors_of_the_reports_pick_these():
    cases: dict[str, list[str]] = {
        "=rocep1s0f1,roceP2p1s0f1": ["rocep1s0f1", "roceP2p1s0f1"],
        "rocep1s0f1:1": ["rocep1s0f1"],
        "rocep1s0f1:": ["rocep1s0f1"],
        "rocep1s0f1:2": [],
        "rocep1s0f1:abc": [],
        "rocep1s0f1:01": ["rocep1s0f1"],
        "rocep1s0f1:\t+1": ["rocep1s0f1"],
        "rocep1s0f1:1abc:7": ["rocep1s0f1"],
        "rocep1s0f1:18446744073709551615": [],
        "roce": ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"],
        "=roce": [],
        "^rocep1s0f0": ["rocep1s0f1", "roceP2p1s0f1"],
        "^=rocep1s0f0": ["rocep1s0f1", "roceP2p1s0f1"],
        "^=rocep1s0f": ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"],
        "rocep1s0f1,,roceP2p1s0f1": ["rocep1s0f1", "roceP2p1s0f1"],
        "roce*": [],
        " rocep1s0f1": [],
        "": ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"],
        ",:1": ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"],
        "^": [],
        ",".join(["x"] * 32) + ",rocep1s0f1": [],
        ",".join(["x"] * 31) + ",rocep1s0f1": ["rocep1s0f1"],
    }
    names = ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f1"]
    assert {text: [n for n in names if parse_selector(text).picks(n, 1)] for text in cases} == cases


# --- GIDs ---


@given(st.text())
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
    interfaces: dict[str, Interface] = {}
    hcas: list[Port] = []
    for number in range(draw(st.integers(1, 3))):
        netdev = NETDEVS[number]
        ips = IPS[2 * number : 2 * number + 2]
        interfaces[netdev] = {"mtu": 9000, "operstate": "up", "addresses": [{"ip": ip, "prefix": 24} for ip in ips]}
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


def outcome(table: Table, selector: str | None, gid_index: object = "resolve") -> Resolution | str:
    """The resolution, or the first line of the refusal."""
    try:
        return resolve(table, FABRIC, selector, gid_index)
    except Refusal as refusal:
        return str(refusal).splitlines()[0]


@given(tables(), choices)
def test_a_resolved_index_is_usable_on_every_member_and_may_be_forced(table, selector):
    found = outcome(table, selector)
    if isinstance(found, str):
        assert found.startswith("no GID index is usable on every HCA")
        assert not isinstance(outcome(table, selector, "unset"), str)
        forced = [str(outcome(table, selector, index)) for index in range(9)]
        assert all(f"gid_index {index} is not usable on every HCA" in words for index, words in enumerate(forced))
        return
    ports = {port["name"]: port for port in table["hcas"]}
    for member in found["members"]:
        port = ports[member["hca"]]
        assert port["state"] == "4: ACTIVE"
        assert member["usable"] == [row["index"] for row in usable_rows(port, table["interfaces"])]
        assert found["gid_index"] in member["usable"]
    assert outcome(table, selector, found["gid_index"]) == found
    unset = outcome(table, selector, "unset")
    assert not isinstance(unset, str)
    assert {**unset, "notes": []} == {**found, "gid_index": None, "notes": []}


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
