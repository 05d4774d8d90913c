"""The whole program under Pulumi's mocks: what it declares, from a shipped stack file and injected facts.

No engine, no provider and no node: what they make of the declarations is tests/lab's to decide.
"""

import asyncio
import copy
import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks as pulumi_mocks
from pulumi.runtime.proto import source_pb2

from components import program
from components.facts import gathering
from components.facts.generation import Generation
from components.facts.node_plan import NodePlan
from components.rank.spec import RankSpec
from components.settings.base import PROJECT_DIR
from components.ssh.target import Resolved, Target
from tests.program.pair import healthy, typed

DIGEST = "sha256:" + "ab" * 32
PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"
API_KEY, HF_TOKEN = "sk-0123456789abcdef", "hf_0123456789abcdef"
NODE_HOME = "/home-of-a-node"
FOLDER, HUB = f"{NODE_HOME}/.local/share/spark-stack/dev", f"{NODE_HOME}/.cache/huggingface/hub"
LOOKUPS = {
    "head": {"gid_index": 3, "hca": "=rocep1s0f1,roceP2p1s0f1", "ifname": "enp1s0f1np1"},
    "worker": {"gid_index": 6, "hca": "=rocep1s0f1,roceP2p1s0f1", "ifname": "enp1s0f1np1"},
}
VERIFIED = {
    "head": {"bytes": 166_857_000_000, "verified_at": "2026-12-01T07:10:00Z"},
    "worker": {"bytes": 166_857_000_001, "verified_at": "2026-12-01T07:12:00Z"},
}
REPORT = {
    "kv_memory_gib": 17.21,
    "kv_tokens": 2_555_830,
    "context_tokens": 1_048_576,
    "max_concurrency": 2.44,
    "served_s": 112.0,
    "served_at": 1_796_112_600.0,
    "answer": "4183.",
    "first_s": 0.5,
    "warmup_s": [6.0, 5.9],
    "settled": True,
}
SECRET = "4dabf18193072939515e22adb298388d"
"""Key by which the SDK marks a dictionary as a wrapped value."""


def plain(value: Any) -> Any:
    """Inputs without the mocks' wrapping of secrets."""
    if isinstance(value, dict):
        return plain(value["value"]) if SECRET in value else {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def public(value: Any) -> Any:
    """Inputs as the state shows them: what is marked secret is left out."""
    if isinstance(value, dict):
        return "[secret]" if SECRET in value else {key: public(item) for key, item in value.items()}
    return [public(item) for item in value] if isinstance(value, list) else value


@dataclass
class Declared:
    """One resource as the engine would be asked for it."""

    kind: str
    name: str
    raw: dict[str, Any]
    """Inputs with secrets wrapped."""
    request: Any = None

    @property
    def inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = plain(self.raw)
        return inputs

    @property
    def after(self) -> set[str]:
        """Names of the resources that it depends on."""
        return {urn.split("::")[-1] for urn in self.request.dependencies}

    @property
    def replaced_with(self) -> list[str]:
        return [urn.split("::")[-1] for urn in self.request.replace_with]

    @property
    def labels(self) -> dict[str, str]:
        return {item["label"]: item["value"] for item in self.inputs["labels"]}

    @property
    def env(self) -> dict[str, str]:
        return dict(item.split("=", 1) for item in self.inputs["envs"])


@dataclass
class Engine(pulumi_mocks.Mocks):
    """Records what is declared, logged and exported; answers as the scripts would."""

    have_run: bool = True
    """False: a preview of new resources, whose scripts have not run."""
    declared: list[Declared] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)
    """Level and text of each message to the user."""

    def answer(self, name: str) -> str:
        role, _, purpose = name.partition("-")
        answers: dict[str, Any] = {"folder": {"folder": FOLDER, "hub": HUB}, "gid": LOOKUPS.get(role)}
        if name == "ready":
            return json.dumps(REPORT)
        if purpose == "api-key":
            return f"{role}-key-word"
        if purpose == "nfs-export":
            return json.dumps({"devices": [f":{HUB}"], "ours": True, "holder": None})
        if purpose == "checkpoint":
            nfs = {"device": f":{HUB}", "shards": 48}
            return json.dumps({"snapshot": "/x", "files": 56, **nfs, **VERIFIED[role]})
        return json.dumps(answers.get(purpose))

    def new_resource(self, args: pulumi_mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.declared.append(Declared(args.typ, args.name, copy.deepcopy(args.inputs)))
        outputs = dict(args.inputs)
        if args.typ.startswith("command:") and self.have_run:
            outputs |= {"stdout": self.answer(args.name), "stderr": ""}
        return f"{args.name}-id" if self.have_run else None, outputs

    def call(self, args: pulumi_mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program invokes {args.token}")

    def one(self, name: str) -> Declared:
        """A resource by its name, but not a component or a provider."""
        [resource] = [item for item in self.resources if item.name == name]
        return resource

    @property
    def resources(self) -> list[Declared]:
        return [item for item in self.declared if not item.kind.startswith(("spark:", "pulumi:"))]

    def of_kind(self, kind: str) -> list[Declared]:
        return [item for item in self.declared if item.kind == kind]

    @property
    def ranks(self) -> list[Declared]:
        """Containers in rank order."""
        return sorted(self.of_kind("docker:index/container:Container"), key=lambda item: item.labels["spark.rank"])


class Monitor(pulumi_mocks.MockMonitor):
    """Records each raw request too: the mocks' arguments do not have the resource options."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.engine = engine

    def RegisterResource(self, request: Any) -> Any:
        # the SDK would give this thread an event loop and leave it open
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            response = super().RegisterResource(request)
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        for item in self.engine.declared:
            if (item.kind, item.name) == (request.type, request.name):
                item.request = request
        return response


@dataclass
class Decided:
    """What the program has decided before it declares the first resource."""

    plans: list[NodePlan]
    specs: list[RankSpec]
    generation: Generation
    said: list[tuple[str, str]]


@cache
def shipped(stack: str) -> str:
    """The `config` of a shipped stack file, as JSON."""
    return json.dumps(yaml.safe_load((PROJECT_DIR / f"Pulumi.{stack}.yaml").read_text())["config"])


@dataclass
class Runner:
    """Runs __main__.py, each call as a program of its own."""

    folder: Path
    patch: pytest.MonkeyPatch
    loop: asyncio.AbstractEventLoop

    def __call__(
        self,
        stack: str = "dev",
        change: Callable[[dict[str, Any]], object] | None = None,
        documents: list[dict[str, Any]] | None = None,
        secrets: dict[str, str] | None = None,
        others: dict[str, str] | None = None,
        engine: Engine | None = None,
        gather: Callable[..., Any] | None = None,
        positions: bool = False,
    ) -> Engine:
        """`change` edits the shipped cluster, `documents` are the nodes' facts, `others` further keys of the stack.

        `gather` stands in for reading the nodes. `positions`: with the lines that declare each resource, for which the
        SDK walks the whole call stack again and again.
        """
        engine = engine or Engine()
        config = json.loads(shipped(stack))
        if change:
            config["spark-stack:cluster"].setdefault("engine", {})
            change(config["spark-stack:cluster"])
        facts = [typed(document) for document in documents or healthy("x86_64" if stack == "dev" else "aarch64")]
        with self.patch.context() as patch:
            patch.setattr(gathering, "gather", gather or (lambda *_: facts))
            patch.setattr(program, "PROJECT_DIR", self.folder)
            if not positions:
                patch.setattr(pulumi.runtime.resource, "_get_stack_trace", source_pb2.StackTrace)
            patch.setattr(pulumi.log, "info", lambda text, *_: engine.said.append(("info", text)))
            patch.setattr(pulumi.log, "warn", lambda text, *_: engine.said.append(("warning", text)))
            values = {name: json.dumps(value) for name, value in config.items() if name.startswith("spark-stack:")}
            values |= {f"spark-stack:{name}": value for name, value in {**(secrets or {}), **(others or {})}.items()}
            patch.setenv("PULUMI_CONFIG", json.dumps(values))
            pulumi.runtime.set_all_config(values, [f"spark-stack:{name}" for name in secrets or {}])
            # the SDK uses the thread's loop, which another test's asyncio.run has closed
            asyncio.set_event_loop(self.loop)
            monitor = Monitor(engine)
            pulumi.runtime.set_mocks(
                engine, project="spark-stack", stack=stack, preview=not engine.have_run, monitor=monitor
            )

            def main() -> pulumi.Output[None]:
                runpy.run_path(str(PROJECT_DIR / "__main__.py"), run_name="__main__")
                exported = pulumi.runtime.get_root_resource().outputs  # type: ignore[union-attr]
                return pulumi.Output.all(**exported).apply(engine.outputs.update)

            pulumi.runtime.test(main)()
        return engine

    def decided(self, *arguments: Any, **options: Any) -> Decided:
        """Runs the program up to its first resource: a tenth of the time of a whole run."""
        made: list[tuple[Any, ...]] = []
        with self.patch.context() as patch:
            patch.setattr("components.stack.SparkPair", lambda *given: made.append(given))
            patch.setattr("components.outputs.export", lambda pair: None)
            engine = self(*arguments, **options)
        [(_, _, plans, specs, generation, _)] = made
        return Decided(plans, specs, generation, engine.said)

    def refused(self, *arguments: Any, **options: Any) -> tuple[list[str], Engine]:
        """The lines of a refusal, which must come before the first resource."""
        engine = options.setdefault("engine", Engine())
        with pytest.raises(pulumi.RunError) as caught:
            self(*arguments, **options)
        assert engine.declared == []
        return str(caught.value).splitlines(), engine


def resolved(target: Target, **changed: Any) -> tuple[Target, Resolved]:
    return target, Resolved(target.host, "ops", 22, [], [], **changed)
