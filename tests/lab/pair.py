"""A pair of the lab for the tests: commands of lab/lab, a shell on a node, and a stack that `pulumi` converges.

$SPARK_LAB says which pair; conftest.py sets it for each file of tests.
"""

import json
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import access
from lab.place import Place

PROJECT_DIR = Path(__file__).parents[2]
LAB = PROJECT_DIR / "lab" / "lab"
API = "http://127.0.0.1:8888"
"""The API's address on the head. Nothing of a node is forwarded to the control host."""
NODES = ("head", "worker")
MODEL = "deepseek-v4-flash-dspark"


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit code, everything it printed, and the seconds it took."""

    code: int
    text: str
    seconds: float


def place() -> Place:
    """The pair of the current file of tests."""
    return Place.of_environment()


def view(of: Path) -> Path:
    """Make a view of the checkout for this pair, and return its folder.

    It has the pair's own `.lab`, and the shipped stack file with the pair's own address of the control host. So several
    pairs run side by side with everything as it ships.
    """
    folder = of / "project"
    folder.mkdir(exist_ok=True)
    links = {name: PROJECT_DIR / name for name in ("components", "scripts", "lab", ".venv")} | {".lab": of}
    for name, target in links.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    # copies, because Python resolves the link of a script and would then use the checkout's own `.lab`
    for name in ("Pulumi.yaml", "__main__.py"):
        (folder / name).write_text((PROJECT_DIR / name).read_text())
    shipped = (PROJECT_DIR / "Pulumi.dev.yaml").read_text()
    (folder / "Pulumi.dev.yaml").write_text(shipped.replace("10.0.2.2:", f"{place().control}:"))
    return folder


def project() -> Path:
    return place().root / "project"


def run(
    argv: list[str], *, limit_s: float, env: dict[str, str] | None = None, check: bool = True, stdin: str = ""
) -> Done:
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=project() if env else PROJECT_DIR, env=env, input=stdin, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
    )  # fmt: skip
    found = Done(done.returncode, done.stdout, time.monotonic() - began)
    assert not check or found.code == 0, f"{' '.join(argv)} ended with {found.code}:\n{found.text[-6000:]}"
    return found


def lab(*words: str, limit_s: float = 600) -> Done:
    return run([str(LAB), *words], limit_s=limit_s)


def on(node: str, line: str, *, root: bool = False, check: bool = True, stdin: str = "") -> str:
    """Run a shell line on a node, as the stack's user or as root, and return what it prints."""
    [known] = [known for known in place().nodes if known.name == node]
    words = access.ssh_command(place(), known, user="root" if root else "spark")
    return run([*words, line], limit_s=180, check=check, stdin=stdin).text


def inspect(node: str, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(on(node, f"docker inspect {container}"))[0]
    return found


def ranks() -> list[dict[str, Any]]:
    """`docker inspect` of both ranks, head first."""
    return [inspect(node, f"spark-dev-rank{rank}") for rank, node in enumerate(NODES)]


def identities() -> list[tuple[str, str]]:
    """Container id and start time of both ranks. If they stay equal, no rank was replaced or restarted."""
    return [(rank["Id"], rank["State"]["StartedAt"]) for rank in ranks()]


Change = Callable[[dict[str, Any]], Any]
"""A test's change to the `cluster` mapping of a stack file."""


class Under:
    """A running command: its output so far, and a way to wait for something."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.log = place().root / "under-way.log"
        with self.log.open("w") as log:
            # a shell without job control makes background commands ignore Ctrl-C
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT", *argv],
                cwd=project(),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def until(self, reached: Callable[[], bool], what: str, limit_s: float = 180) -> None:
        """Wait for something that happens while the command runs. Fails if it does not happen."""
        end = time.monotonic() + limit_s
        while not reached():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.text[-6000:]}"
            assert time.monotonic() < end, f"no {what} within {limit_s:.0f} s:\n{self.text[-6000:]}"
            time.sleep(0.3)

    def wait(self, *, check: bool = True, limit_s: float = 600) -> Done:
        began = time.monotonic()
        code = self.process.wait(limit_s)
        assert not check or code == 0, self.text[-6000:]
        return Done(code, self.text, time.monotonic() - began)

    def interrupt(self) -> Done:
        """Ctrl-C, and a second one, as from somebody who does not wait for the running steps to end."""
        self.process.send_signal(signal.SIGINT)
        time.sleep(2)
        self.process.send_signal(signal.SIGINT)
        return self.wait(check=False, limit_s=60)


def hub(**switches: Any) -> None:
    """Set the switches of the lab's hub (lab/hub/switches.py); without any, it is a good hub."""
    file = place().root / "hub.json"
    if switches:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(switches))
        part.replace(file)
    else:
        file.unlink(missing_ok=True)


def hub_log() -> str:
    """The hub's log: one line for each request, with method, path, status and range."""
    return (place().root / "hub.log").read_text()


class Stack:
    """A stack in the tests' own backend, from the shipped Pulumi.dev.yaml or a changed copy of it."""

    api_key: str | None = None
    hf_token: str | None = None
    """If set, a changed stack file gets api_key and hf_token as secrets."""

    def __init__(self, name: str = "dev") -> None:
        self.name = name
        text = run([str(PROJECT_DIR / "scripts" / "env"), "env", "-0"], limit_s=60).text
        self.env = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        backend = place().root / "state"
        backend.mkdir(parents=True, exist_ok=True)
        self.env["PULUMI_BACKEND_URL"] = f"file://{backend}"
        self.changed = place().root / "Pulumi.changed.yaml"
        self.pulumi("stack", "select", "--create", self.name)

    def pulumi(self, *words: str, check: bool = True, limit_s: float = 600) -> Done:
        return run(["pulumi", *words], limit_s=limit_s, env=self.env, check=check)

    def file(self, change: Change | None) -> list[str]:
        """The arguments that name the stack file; none for the shipped one."""
        if change is None:
            return []
        document = yaml.safe_load((project() / "Pulumi.dev.yaml").read_text())
        change(document["config"]["spark-stack:cluster"])
        path = self.changed
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        for name, value in (("api_key", self.api_key), ("hf_token", self.hf_token)):
            if value:
                secret = ["--secret", "--config-file", str(path), f"spark-stack:{name}"]
                subprocess.run(
                    ["pulumi", "config", "set", "--stack", self.name, *secret],
                    cwd=project(), env=self.env, input=value, text=True, check=True, capture_output=True,
                )  # fmt: skip
        return ["--config-file", str(path)]

    def up(self, change: Change | None = None, *words: str, check: bool = True) -> Done:
        flags = ["--stack", self.name, "--yes", "--skip-preview", "--non-interactive", *self.file(change)]
        return self.pulumi("up", *flags, *words, check=check)

    def begin_up(self, change: Change | None = None, *words: str) -> "Under":
        """Begin an `up` and let it run, so that the test can do something meanwhile."""
        flags = ["--stack", self.name, "--yes", "--skip-preview", "--non-interactive", *self.file(change)]
        return Under(["pulumi", "up", *flags, *words], self.env)

    def preview(self, change: Change | None = None, *words: str, check: bool = True) -> Done:
        flags = ["--stack", self.name, "--non-interactive", "--diff", *self.file(change)]
        return self.pulumi("preview", *flags, *words, check=check)

    def steps(self, change: Change | None = None) -> dict[str, str]:
        """The operation of a preview for each resource, without components and resources that stay the same."""
        flags = ["--stack", self.name, "--non-interactive", "--json", *self.file(change)]
        found = self.pulumi("preview", *flags)
        # the plugins may print warnings before the document
        document = json.loads(found.text[found.text.index("{") :])
        steps = {}
        for step in document["steps"]:
            _, _, kind, name = step["urn"].rsplit("::", 3)
            if step["op"] != "same" and "spark:" not in kind.rsplit("$", 1)[-1] and "pulumi:Stack" not in kind:
                steps[name] = step["op"]
        return steps

    def outputs(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.pulumi("stack", "output", "--stack", self.name, "--json").text)
        return found

    def spark(self, *words: str, answer: str = "") -> Done:
        """Run scripts/spark with `answer` on its stdin."""
        began = time.monotonic()
        done = subprocess.run(
            [str(project() / "scripts" / "spark"), *words], cwd=project(), env=self.env, input=answer,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return Done(0, done.stdout, time.monotonic() - began)

    def destroy(self) -> Done:
        return self.pulumi("destroy", "--stack", self.name, "--yes", "--skip-preview", "--non-interactive")


def api(path: str, body: dict[str, Any] | None = None, key: str | None = None, *, at: str = API) -> tuple[int, Any]:
    """Status and document of a request to the engine, made on the head itself. The headers go over stdin."""
    send = f"--data {shlex.quote(json.dumps(body))}" if body else ""
    headers = ["Content-Type: application/json", *([f"Authorization: Bearer {key}"] if key else [])]
    line = f"curl --silent --max-time 120 --write-out '\\n%{{http_code}}' --header @- {send} {at}{path}"
    text, _, status = on("head", line, stdin="\n".join(headers)).rpartition("\n")
    return int(status), json.loads(text)


def ask(question: str = "What is 47 x 89?", key: str | None = None) -> str:
    """Ask the pair one question and return the answer."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
    status, document = api("/v1/chat/completions", body, key)
    assert status == 200, document
    return str(document["choices"][0]["message"]["content"])


def gid_row(node: str) -> int:
    """The RoCE v2 row of the node's fabric address in its own table, on the first port."""
    address = f"192.168.100.{NODES.index(node) + 1}"
    digits = socket.inet_aton(address).hex()
    gid = f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"
    table = "/sys/class/infiniband/rocep1s0f1/ports/1"
    rows = on(node, f"cd {table}/gids && grep -l {gid} [0-9]*").split()
    kinds = {row: on(node, f"cat {table}/gid_attrs/types/{row}").strip() for row in rows}
    [row] = [row for row, kind in kinds.items() if kind == "RoCE v2"]
    return int(row)


def environment_of(node: str, container: str) -> dict[str, str]:
    """The environment of a container's process 1, as the kernel has it: what rank.py passed to the engine."""
    pid = inspect(node, container)["State"]["Pid"]
    text = on(node, f"tr '\\0' '\\n' </proc/{pid}/environ", root=True)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def words_of(text: str) -> str:
    """Printed text without colors and repeated white space, to compare sentences."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))
