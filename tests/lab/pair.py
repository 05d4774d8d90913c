"""A pair of the lab as the tests see it: commands of lab/lab, a shell on a node, and a stack that `pulumi` converges.

Which pair is said by $SPARK_LAB, which conftest.py sets for each file of tests.
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
from lab.place import NODES as LAB_NODES
from lab.place import Place

PROJECT_DIR = Path(__file__).parents[2]
LAB = PROJECT_DIR / "lab" / "lab"
API = "http://127.0.0.1:8888"
"""On the head: nothing of a node is forwarded to the control host."""
NODES = ("head", "worker")
MODEL = "deepseek-v4-flash-dspark"


@dataclass(frozen=True)
class Done:
    """A command that ended: exit code, everything it printed, seconds it took."""

    code: int
    text: str
    seconds: float


def place() -> Place:
    """The pair of the file of tests that runs."""
    return Place.of_environment()


def view(of: Path) -> Path:
    """The checkout as this pair's: its own `.lab` and the shipped stack file with its own address of the control host.

    So everything that is shipped runs as it is, several pairs side by side. Returns the folder.
    """
    folder = of / "project"
    folder.mkdir(exist_ok=True)
    links = {name: PROJECT_DIR / name for name in ("components", "scripts", "lab", ".venv")} | {".lab": of}
    for name, target in links.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    # Python resolves the link of a script, and would then run beside the checkout's own `.lab`
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
    """What a shell line prints on a node, as the user that the stack uses, or as root."""
    [known] = [known for known in LAB_NODES if known.name == node]
    words = access.ssh_command(place(), known, user="root" if root else "spark")
    return run([*words, line], limit_s=180, check=check, stdin=stdin).text


def inspect(node: str, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(on(node, f"docker inspect {container}"))[0]
    return found


def ranks() -> list[dict[str, Any]]:
    """`docker inspect` of both ranks, head first."""
    return [inspect(node, f"spark-dev-rank{rank}") for rank, node in enumerate(NODES)]


def identities() -> list[tuple[str, str]]:
    """Container id and start time of both ranks: equal means that nothing was replaced or restarted."""
    return [(rank["Id"], rank["State"]["StartedAt"]) for rank in ranks()]


Change = Callable[[dict[str, Any]], Any]
"""What a test does to the cluster's mapping of a stack file."""


class Under:
    """A command under way; its lines so far, and a way to wait for one of them."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.log = place().root / "under-way.log"
        with self.log.open("w") as log:
            # a shell without job control starts what is in the background with Ctrl-C ignored
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
        """Wait for something that happens while the command runs; not to see it is a failure."""
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
        """Ctrl-C, and again for one who does not wait until what is under way has ended."""
        self.process.send_signal(signal.SIGINT)
        time.sleep(2)
        self.process.send_signal(signal.SIGINT)
        return self.wait(check=False, limit_s=60)


def hub(**switches: Any) -> None:
    """Tell the lab's hub what to do badly (lab/hub/switches.py); without any, nothing."""
    file = place().root / "hub.json"
    if switches:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(switches))
        part.replace(file)
    else:
        file.unlink(missing_ok=True)


def hub_log() -> str:
    """Every request that the hub had, one a line: method, path, status, range."""
    return (place().root / "hub.log").read_text()


class Stack:
    """A stack in a backend of the tests' own, from the shipped Pulumi.dev.yaml or a changed copy of it."""

    api_key: str | None = None
    hf_token: str | None = None
    """Set: a changed stack file gets them as the stack's secrets."""

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
        """The words that name the stack file: none for the shipped one."""
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
        """An `up` that runs on by itself, for what happens meanwhile."""
        flags = ["--stack", self.name, "--yes", "--skip-preview", "--non-interactive", *self.file(change)]
        return Under(["pulumi", "up", *flags, *words], self.env)

    def preview(self, change: Change | None = None, *words: str, check: bool = True) -> Done:
        flags = ["--stack", self.name, "--non-interactive", "--diff", *self.file(change)]
        return self.pulumi("preview", *flags, *words, check=check)

    def steps(self, change: Change | None = None) -> dict[str, str]:
        """What a preview would do: resource name -> operation, without what stays the same and without components."""
        flags = ["--stack", self.name, "--non-interactive", "--json", *self.file(change)]
        found = self.pulumi("preview", *flags)
        # warnings of the plugins may stand before the document
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
        """scripts/spark, with `answer` on its stdin."""
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
    """Status and document of one request to the engine, from the head's own shell. The headers go by stdin."""
    send = f"--data {shlex.quote(json.dumps(body))}" if body else ""
    headers = ["Content-Type: application/json", *([f"Authorization: Bearer {key}"] if key else [])]
    line = f"curl --silent --max-time 120 --write-out '\\n%{{http_code}}' --header @- {send} {at}{path}"
    text, _, status = on("head", line, stdin="\n".join(headers)).rpartition("\n")
    return int(status), json.loads(text)


def ask(question: str = "What is 47 x 89?", key: str | None = None) -> str:
    """The answer to one question."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0}
    status, document = api("/v1/chat/completions", body, key)
    assert status == 200, document
    return str(document["choices"][0]["message"]["content"])


def gid_row(node: str) -> int:
    """The row that the node's own table has for its fabric address: RoCE v2, on the first port."""
    address = f"192.168.100.{NODES.index(node) + 1}"
    digits = socket.inet_aton(address).hex()
    gid = f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"
    table = "/sys/class/infiniband/rocep1s0f1/ports/1"
    rows = on(node, f"cd {table}/gids && grep -l {gid} [0-9]*").split()
    kinds = {row: on(node, f"cat {table}/gid_attrs/types/{row}").strip() for row in rows}
    [row] = [row for row, kind in kinds.items() if kind == "RoCE v2"]
    return int(row)


def environment_of(node: str, container: str) -> dict[str, str]:
    """The environment of a container's process 1 as the kernel has it: what rank.py handed to the engine."""
    pid = inspect(node, container)["State"]["Pid"]
    text = on(node, f"tr '\\0' '\\n' </proc/{pid}/environ", root=True)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def words_of(text: str) -> str:
    """Printed text without colours and repeated white space, for asserting on sentences."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))
