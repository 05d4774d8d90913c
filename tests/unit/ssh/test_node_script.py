"""How a file of scripts/node gets to a node: on stdin, with what it imports, nothing left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.ssh.node_script import environment_payload, run_script
from components.ssh.target import Resolved, SshError, Target
from loader import payload
from tests.unit.executables import SCRIPTS, Recorder

MODULES = {".".join(path.relative_to(SCRIPTS).with_suffix("").parts): path for path in SCRIPTS.glob("*/*.py")}
COMMANDS = sorted(name for name, path in MODULES.items() if "\nif __name__ ==" in path.read_text())
NEEDED = {
    "host.our_folder": ["host.console", "host.our_folder", "host.remove_trees", "loader"],
    "host.put_secret": ["host.console", "host.our_folder", "host.put_secret", "host.remove_trees", "loader"],
    "host.pull_image": [
        "host.console",
        "host.dockerd",
        "host.our_folder",
        "host.pull_image",
        "host.remove_trees",
        "loader",
    ],
    "rank.start": [
        *("gid.lookup", "gid.members", "gid.sysfs", "gid.table", "hub.files", "rank.effort_edit", "rank.start"),
        "rank.patch_steps",
    ],
}
KEY = "it's\"a-$key`"


def on_stdin(text: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The text as a node's Python reads it, outside this project, so that none of its files is found."""
    return subprocess.run(
        [sys.executable, "-IS", "-", *arguments],
        input=text,
        env={"PATH": "/usr/bin:/bin", **env},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=20,
    )


@pytest.mark.parametrize(("name", "modules"), NEEDED.items())
def test_a_script_is_sent_with_the_modules_it_imports_and_no_other(name: str, modules: list[str]):
    assert re.findall(r"^sources\['(.*?)'\] = ", payload(name), re.MULTILINE) == sorted(modules)


@pytest.mark.parametrize("name", sorted({each.partition(".")[0] for each in MODULES}))
def test_no_folder_of_scripts_node_hides_a_module_of_the_standard_library(name: str):
    assert name not in sys.stdlib_module_names


def test_a_sent_script_runs_with_its_imports_embedded(tmp_path: Path):
    folder = tmp_path / ".local/share/spark-stack/dev"
    (folder / "secrets").mkdir(parents=True)
    put = on_stdin(
        environment_payload("host.put_secret", {"SPARK_SECRET": KEY}),
        json.dumps({"stack": "dev", "name": "api_key"}),
        HOME=str(tmp_path),
    )
    assert put.returncode == 0, put.stderr
    assert (folder / "secrets/api_key").read_text() == KEY


def test_a_variable_of_any_characters_arrives_as_it_is():
    """JSON would write a character beyond 16 bits as two halves."""
    variables = environment_payload("host.put_secret", {"SPARK_SECRET": "\U0001f511"}).splitlines()[:2]
    told = on_stdin("\n".join([*variables, "print(ascii(os.environ['SPARK_SECRET']))"]))
    assert told.stdout.strip() == r"'\U0001f511'"


def test_a_module_of_scripts_node_imports_the_standard_library_and_its_like_alone():
    """A Spark's python3 has no packages. The runtime image, where the download runs, has huggingface_hub."""
    ours = {"loader", *(name.partition(".")[0] for name in MODULES)}
    for name, path in MODULES.items():
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
        more = {"huggingface_hub"} if name == "download.hub_client" else set()
        assert imported - sys.stdlib_module_names - ours <= more, name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_scripts_node_can_be_sent(name: str):
    assert max(map(len, payload(name).splitlines())) < 1 << 16, "a longer line has hung pulumi-command"


TARGET, RESOLVED = Target("lab-head"), Resolved("203.0.113.7", "ops", 22, [], [])


def test_a_script_that_ran_hands_back_its_stdout(recorder: Recorder):
    recorder.answer("ssh", "cat >&2; echo found")
    assert run_script(TARGET, RESOLVED, "gid.lookup", {"fabric_ip": "198.51.100.1"}, timeout_s=7) == "found\n"
    [call] = recorder.calls("ssh")
    assert call[-2:] == ["lab-head", """timeout -k 10 7 python3 -I - '{"fabric_ip":"198.51.100.1"}'"""]
    assert call[call.index("-o") + 1] == "BatchMode=yes"


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            "echo 'Warning: x' >&2; echo 'connect to host 203.0.113.7 port 22: No route to host' >&2; exit 255",
            "SSH to lab-head (ops@203.0.113.7 port 22) failed before gid.lookup: connect to host 203.0.113.7 port 22: "
            "No route to host: switch the node on, check its management network's cable, or try `ssh` by hand",
        ),
        (
            "echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2; echo 'Host key verification failed.' >&2;"
            " exit 255",
            "SSH to lab-head (ops@203.0.113.7 port 22) failed before gid.lookup: Host key verification failed.: if the "
            "node was installed anew, remove its old key with ssh-keygen -R and connect once by hand",
        ),
        (
            "echo 'ops@203.0.113.7: Permission denied (publickey).' >&2; exit 255",
            "SSH to lab-head (ops@203.0.113.7 port 22) failed before gid.lookup: ops@203.0.113.7: Permission denied "
            "(publickey).: load the key with ssh-add",
        ),
        ("exit 255", "SSH to lab-head (ops@203.0.113.7 port 22) failed before gid.lookup: no reason given: "),
        ("exit 124", "gid.lookup on lab-head was ended after 7 s: check whether the node is overloaded"),
        ("echo 'no table' >&2; exit 4", "gid.lookup on lab-head ended with exit code 4: no table"),
        ("exit 127", "gid.lookup on lab-head ended with exit code 127: no reason given"),
    ],
)
def test_a_script_that_failed_names_node_and_step(does: str, message: str, recorder: Recorder):
    recorder.answer("ssh", does)
    with pytest.raises(SshError) as caught:
        run_script(TARGET, RESOLVED, "gid.lookup", {}, timeout_s=7)
    assert str(caught.value).startswith(message)


def test_a_node_that_never_answers_is_given_up_and_named(monkeypatch: pytest.MonkeyPatch):
    def late(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("ssh", timeout)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(SshError, match=r"gid\.lookup on lab-head gave no answer within 27 s"):
        run_script(TARGET, RESOLVED, "gid.lookup", {}, timeout_s=7)
