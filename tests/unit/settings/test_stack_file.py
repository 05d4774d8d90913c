"""Numbers that YAML changes without a word, seen in the stack file's own text."""

import pytest

from components.settings.stack_file import octal_numbers

FILE = """
config:
  spark-stack:cluster:
    profile: 0731  # refused on its own, as a name
    nodes:
      - ssh: spark-a
        fabric_ip: 192.168.100.1
    checkpoint: {revision: "0123"}
    engine: {VALUE}
  other:cluster2:
    port: 025000
"""


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("master_port: 025000", "engine/master_port: 025000 has a leading zero, so YAML reads it as another number"),
        ("port: 08888", "engine/port: 08888 has a leading zero"),
        ("extra_args: [--x, 010]", "engine/extra_args/1: 010 has a leading zero"),
    ],
)
def test_a_bare_number_with_a_leading_zero_is_refused_with_its_path(value: str, line: str):
    [told] = octal_numbers(FILE.replace("{VALUE}", f"{{{value}}}"))
    assert told.startswith(line)


@pytest.mark.parametrize(
    "value", ["port: 8888", "gpu_memory_utilization: 0.85", "port: 0", 'extra_args: ["010"]', "x: 0x1f"]
)
def test_other_values_are_left_to_the_settings(value: str):
    assert octal_numbers(FILE.replace("{VALUE}", f"{{{value}}}")) == []


def test_a_text_that_is_not_yaml_is_not_judged():
    assert octal_numbers("a: [") == []
