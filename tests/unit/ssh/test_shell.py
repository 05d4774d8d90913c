"""What a POSIX shell makes of the lines we build: exactly our arguments, whatever they contain."""

import json
import os
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from components.ssh.shell import command_line, json_argument, python_line

AWKWARD = ['{"image":8}', "a b", "", "$HOME", "`id`", "it's", '"', "\\", "*", "-n", ";", "\n", "\u00e9", "~"]
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
# where python3 is this one: elsewhere it may be a slow chooser between versions
ENVIRONMENT = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"}
ECHO = ["python3", "-IS", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


def ran(line: str, **options: str) -> str:
    argv = ["sh", "-c", line]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        argv, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=20, **options
    ).stdout


def test_a_shell_hands_on_every_word_as_it_was():
    assert json.loads(ran(command_line([*ECHO, *AWKWARD]))) == AWKWARD


@examples(max_examples=15)
@given(st.lists(WORDS, max_size=4))
def test_any_arguments_survive_the_shell(arguments: list[str]):
    line = command_line(["printf", "%s\\0", "", *arguments])
    assert (
        subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout.decode().split("\0")[1:-1]
        == arguments
    )


def test_a_script_gets_its_inputs_as_one_json_argument():
    inputs = {"hf_cache": "~/it's here", "hca": None, "ports": [8888]}
    line = python_line(inputs, 60, note="boot 1; rm -rf /")
    assert json.loads(ran(line, input="import sys; print(sys.argv[1])")) == inputs


@examples(max_examples=15)
@given(st.dictionaries(st.text("a'!\\\"\n$`", max_size=5), WORDS, max_size=3))
def test_the_inputs_need_no_quoting_of_any_shell(inputs: dict[str, str]):
    """fish and tcsh have ways of their own with a backslash, a single quote and an exclamation mark."""
    argument = json_argument(inputs)
    assert json.loads(argument) == inputs
    assert not re.search(r"['!]|\\[^u]", argument)


def test_a_script_is_ended_at_its_limit_and_killed_after_it():
    assert python_line({}, 60) == "timeout -k 10 60 python3 -I - '{}'"


def test_a_note_is_a_no_op_in_front_that_a_reviewer_reads():
    assert python_line({}, 60, note="boot 1 table 2") == ": 'boot 1 table 2'; timeout -k 10 60 python3 -I - '{}'"


def test_the_order_of_the_inputs_changes_no_line():
    assert python_line({"a": 1, "b": 2}, 5) == python_line({"b": 2, "a": 1}, 5)
