"""What a stack file may say, and how it is refused: one line for each mistake, `path: complaint, way out`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from components.rank.argv import serve_argv
from components.settings.base import SettingsError
from components.settings.cluster import NO_DIGEST, load
from components.settings.engine_settings import EngineSettings
from components.settings.profile import profiles
from tests.unit.characters import ANY
from tests.unit.settings.mistakes import SINGLE_MISTAKES, engine
from tests.unit.stacks import NODES, cluster, node, raw

DIGEST = "sha256:" + "ab" * 32


def refusal(value: object, **options: Any) -> list[str]:
    """The lines of a stack file that must be refused."""
    with pytest.raises(SettingsError) as caught:
        load(value, **options)
    return caught.value.lines


@pytest.mark.parametrize(("change", "line"), SINGLE_MISTAKES, ids=[line[:60] for _, line in SINGLE_MISTAKES])
def test_a_mistake_is_refused_in_one_line_with_its_path_and_the_way_out(change: Mapping[str, Any], line: str):
    assert refusal(raw(change=change)) == [line]


def test_a_stack_file_with_five_mistakes_is_refused_with_five_lines():
    stack = raw(
        change={
            "profil": "dspark",
            "nodes": [{"ssh": "CHANGEME", "fabric_ip": "ops@198.51.100.1"}, NODES[1]],
            "checkpoint": {"revision": "main"},
            "engine": {"max_num_seqs": "six"},
        }
    )
    with pytest.raises(SettingsError) as caught:
        load(stack)
    assert str(caught.value).splitlines() == [
        "the settings of this stack were refused:",
        "  nodes/0/ssh: 'CHANGEME' is a placeholder from an example: put this node's own value here",
        "  nodes/0/fabric_ip: must be an IPv4 address alone, such as 192.168.100.1, found 'ops@198.51.100.1'",
        "  checkpoint/revision: 'main' is not a commit: branches move, so give its 40 hex digits "
        "(`git ls-remote https://huggingface.co/OWNER/NAME main` prints them)",
        "  engine/max_num_seqs: must be a valid integer, found 'six'",
        "  profil: unknown key: check its spelling, or remove it",
    ]


def test_nodes_that_are_alike_are_refused_beside_other_mistakes():
    lines = refusal(raw(change={**node(1, fabric_ip="198.51.100.1"), "checkpoint": {"revision": "main"}}))
    assert [line.split(":")[0] for line in lines] == ["nodes", "checkpoint/revision"]


def test_a_missing_profile_is_not_blamed_on_what_the_profile_would_have_brought():
    assert refusal({"nodes": NODES}) == ["profile: missing: use one of 0731, dspark, vision-exp"]


def test_a_wrong_profile_hides_no_other_mistake():
    stack = raw(change={"profile": "dsparkk", "engine": {"max_num_seqs": "six"}, "checkpoint": {"revision": "main"}})
    assert [line.split(":")[0] for line in refusal(stack)] == ["profile", "checkpoint/revision", "engine/max_num_seqs"]


def test_the_page_without_a_revision_asks_for_one():
    [line] = refusal({"profile": "dspark", "nodes": NODES})
    assert line.startswith("checkpoint/revision: missing: this profile's source pins none: add the commit that you")


@pytest.mark.parametrize("value", [None, "x", [], 3])
def test_a_stack_without_a_mapping_is_pointed_at_the_example(value: object):
    assert refusal(value) == ["(top): spark-stack:cluster is missing or not a mapping: start from Pulumi.example.yaml"]


def test_two_nodes_and_a_profile_are_enough():
    stack = load({"profile": "0731", "nodes": NODES})
    assert [stack.role(rank) for rank in (0, 1)] == ["head", "worker"]


PATCHES_NEEDED = (
    "patches: without the patch vision-exp the pinned image cannot load this checkpoint (it has no place for the "
    "tensors vision.*, aligner.*, image_* and ffn.gate.bias_vl): take vision-exp back in, or another profile"
)


@pytest.mark.parametrize("patches", ["off", False, None, {"skip": ["vision-exp"]}])
def test_vision_exp_without_its_patch_is_refused_with_the_reason(patches):
    assert refusal(raw("vision-exp", {"patches": patches})) == [PATCHES_NEEDED]


def names(profile: str, patches: object = None) -> set[str]:
    """Patches that a stack on this profile starts with."""
    found = cluster(profile, {"patches": patches} if patches else None).patches
    return {patch.name for patch in found.patches} if found else set()


def test_a_profile_brings_its_patches_and_a_stack_may_leave_some_out():
    assert "vision-exp" in names("vision-exp")
    assert names("0731") == names("vision-exp") - {"vision-exp"}
    assert names("vision-exp", {"skip": ["issue22"]}) == names("vision-exp") - {"issue22"}
    assert names("dspark") == names("0731", "off") == set()


def test_a_copy_of_the_patches_that_holds_something_else_is_refused_at_once(tmp_path):
    lines = refusal(raw("vision-exp", {"patches": {"folder": str(tmp_path)}}))
    assert (
        f"patches/folder: vision_exp/apply.py cannot be read in {tmp_path}/patches: No such file or directory" in lines
    )
    assert "scripts/spark patches lock" in lines[-1]


def test_a_stack_cannot_declare_that_its_profile_needs_no_patches():
    lines = refusal(raw("vision-exp", {"needs_patches": None}))
    assert lines == ["needs_patches: unknown key: check its spelling, or remove it"]


def test_a_profile_whose_name_yaml_takes_for_a_number_is_asked_for_in_quotes():
    number = yaml.safe_load("profile: 0731")["profile"]
    assert refusal({"profile": number, "nodes": NODES}) == [
        "profile: there is no profile 473 (YAML reads a bare 0731 as a number: write it in quotes): "
        "use one of 0731, dspark, vision-exp"
    ]


def test_every_shipped_profile_has_a_test():
    assert profiles() == ["0731", "dspark", "vision-exp"]


def test_vision_exp_takes_what_its_drafter_predicts_at_a_time():
    assert cluster("vision-exp", change=engine(num_speculative_tokens=9)).engine.capture_size == 64
    with pytest.raises(SettingsError, match=r"7 does not suit .* a multiple of 3 that is at least 5: use 6 or 9"):
        cluster("vision-exp", change=engine(num_speculative_tokens=7))
    with pytest.raises(SettingsError, match=r"3 does not suit .*: use 6$"):
        cluster("vision-exp", change=engine(num_speculative_tokens=3))


@pytest.mark.parametrize(("value", "facts"), [(True, "on"), (False, "off"), ("on", "on"), ("off", "off")])
def test_yamls_own_booleans_switch_the_facts(value: object, facts: str):
    assert cluster(change={"facts": value}).facts == facts


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE"])
def test_a_variable_about_tokens_is_not_a_secret(name: str):
    assert cluster(change=engine(extra_env={name: "1"})).engine.extra_env == {name: "1"}


@pytest.mark.parametrize("flag", ["--return-tokens-as-token-ids", "--tokenizer", "--max-log-len"])
def test_a_flag_without_a_setting_is_accepted(flag: str):
    assert cluster(change=engine(extra_args=[flag])).engine.extra_args == [flag]


@pytest.mark.parametrize(
    "target", ["ops@[2001:db8::2]", "ssh://ops@worker:2222", "ops@worker:2222", "worker", "spark-b.example.net"]
)
def test_every_form_of_an_ssh_target_is_accepted(target: str):
    assert cluster(change=node(1, ssh=target)).nodes[1].ssh == target.removeprefix("ssh://")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_loopback_api_needs_no_key(host: str):
    assert cluster(change=engine(host=host)).engine.host == host


def test_an_open_api_is_accepted_with_a_key_or_when_the_stack_allows_it():
    stack = raw(change=engine(host="0.0.0.0"))
    assert load(stack, has_api_key=True).engine.host == "0.0.0.0"
    assert cluster(change=engine(host="0.0.0.0", allow_unauthenticated_lan=True)).engine.host == "0.0.0.0"


def test_a_flag_that_every_rank_has_cannot_be_given_a_second_time():
    rendered = [word for rank in (0, 1) for word in serve_argv(cluster(), rank) if word.startswith("--")]
    taken = []
    for flag in dict.fromkeys(rendered):
        try:
            EngineSettings.extra_args_add_only([flag])
            taken.append(flag)
        except ValueError:
            continue
    assert taken == [], "the last of two would win silently"


def test_the_tag_is_not_part_of_what_is_pulled_but_the_registrys_port_is():
    image = cluster(change={"image": {"reference": f"10.0.2.2:5000/a/b:0.1.1@{DIGEST}"}}).image
    assert (image.repository, image.digest, image.pinned) == (
        "10.0.2.2:5000/a/b",
        DIGEST,
        f"10.0.2.2:5000/a/b@{DIGEST}",
    )


def test_an_image_without_a_registry_has_a_repository_too():
    assert cluster(change={"image": {"reference": f"vllm:1@{DIGEST}"}}).image.pinned == f"vllm@{DIGEST}"


class TestDigestFile:
    """A digest that was written by the build of an image, such as the lab's."""

    stack = raw(change={"image": {"reference": "10.0.2.2:5000/a/b", "digest_file": "image.digest"}})
    hint = "build the image first (for the lab: lab/lab up)"

    def test_it_completes_the_reference(self, tmp_path: Path):
        (tmp_path / "image.digest").write_text(f"{DIGEST}\n")
        assert load(self.stack, project_dir=tmp_path).image.pinned == f"10.0.2.2:5000/a/b@{DIGEST}"

    def test_it_must_be_there(self, tmp_path: Path):
        line = f"image/digest_file: image.digest is not a file with a sha256: digest: {self.hint}"
        assert refusal(self.stack, project_dir=tmp_path) == [line]

    def test_it_may_be_missing_where_nothing_is_pulled(self, tmp_path: Path):
        assert load(self.stack, project_dir=tmp_path, to_start=False).image.digest == NO_DIGEST

    @pytest.mark.parametrize("content", [b"sha256:short", b"\xff\xfe", b""])
    def test_it_must_hold_a_digest(self, content: bytes, tmp_path: Path):
        (tmp_path / "image.digest").write_bytes(content)
        for needed in (True, False):
            [line] = refusal(self.stack, project_dir=tmp_path, to_start=needed)
            assert line.startswith("image/digest_file: image.digest ") and line.endswith(self.hint)

    def test_its_absence_hides_no_other_mistake(self, tmp_path: Path):
        stack = {**self.stack, "profile": "dspark"}
        lines = refusal(stack, project_dir=tmp_path)
        assert [line.split(":")[0] for line in lines] == ["image/digest_file", "checkpoint/revision"]


def test_settings_do_not_change_after_they_were_read():
    with pytest.raises(ValueError, match="frozen"):
        cluster().engine.port = 1  # type: ignore[misc]


KEYS = st.sampled_from(
    ["profile", "nodes", "image", "checkpoint", "engine", "fabric", "nccl", "gid_index", "facts", "allow", "ssh"]
) | st.text(ANY, max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(ANY, max_size=8)
    | st.sampled_from(["vision-exp", "off"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
PLACES = st.sampled_from(
    [
        *[
            (name,)
            for name in ("nodes", "image", "checkpoint", "engine", "fabric", "hardware", "readiness", "allow", "x")
        ],
        *[("engine", name) for name in EngineSettings.model_fields],
        *[("image", name) for name in ("reference", "digest_file", "python", "pull_timeout_s")],
        *[("checkpoint", name) for name in ("repo", "revision", "shards", "size_gib", "endpoint")],
        *[("fabric", name) for name in ("gid_index", "nccl")],
    ]
)


def well_formed(lines: list[str]) -> bool:
    return all(": " in line and line.isprintable() for line in lines)


@given(value=JSON)
def test_whatever_the_file_holds_it_is_accepted_or_refused_in_lines(value: object):
    try:
        load(value)
    except SettingsError as error:
        assert error.lines and well_formed(error.lines)


@given(place=PLACES, value=JSON)
def test_whatever_one_key_holds_it_is_accepted_or_refused_in_one_line_for_each_path(
    place: tuple[str, ...], value: object
):
    stack = raw()
    inner = stack
    for name in place[:-1]:
        inner = inner.setdefault(name, {})
    inner[place[-1]] = value
    try:
        load(stack)
    except SettingsError as error:
        assert error.lines and well_formed(error.lines)
        paths = [line.split(": ")[0] for line in error.lines]
        assert len(paths) == len(set(paths))


@pytest.mark.parametrize("name", ["/bin", "\0", "x" * 5000, "/proc/self/mem", "."])
def test_a_digest_file_that_cannot_be_read_is_a_refusal_too(name: str):
    [line] = refusal(raw(change={"image": {"digest_file": name}}))
    assert line.startswith("image/digest_file: ")
