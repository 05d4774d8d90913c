"""What a rank finds around itself, for tests that run the shipped rank.start up to the engine that it becomes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest import mock

from rank.start import StartInputs
from tests.unit.executables import Recorder, run_shipped
from tests.unit.node.node_tree import HCA, HEAD, T_HEAD, Hca, build
from tests.unit.node.rank.tokenizers import SHIPPED
from tests.unit.node.snapshots import ENCODER, REPO, REVISION, snapshot


class Container:
    """A rank's /sys, its cache, its start file, and an engine that keeps what it got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Recorder(folder / "bin")
        self.engine.answer("engine", f"env -0 >{folder}/engine.env; echo 'the engine runs'; exit 7")
        self.snapshot = snapshot(folder / "cache/hub")
        self.encoder = folder / "vllm/deepseek_v4_encoding.py"
        self.encoder.parent.mkdir()
        self.encoder.write_text("PROMPT = 3\n")
        self.efforts = self.encoder.with_name("deepseek_v4.py")
        self.efforts.write_text(SHIPPED)
        self.hcas = {HCA: Hca(T_HEAD)}
        self.trees = 0
        self.apart = False
        """True: a process of its own, which becomes the engine. Else the engine is a child of this process."""
        self.start: StartInputs = {
            "rank": 0,
            "fabric_ip": HEAD,
            "hca": None,
            "links": [],
            "ifnames": {},
            "gid_index": "resolve",
            "repo": REPO,
            "revision": REVISION,
            "shards": 3,
            "encoding_file": ENCODER,
            "encoding_target": str(self.encoder),
            "patches": [],
            "patch_limit_s": 20,
        }

    def run(self, command: str = "engine", **env: str) -> "subprocess.CompletedProcess[str]":
        self.trees += 1
        given = {
            **build(self.folder / f"sys{self.trees}", self.hcas),
            "SPARK_START": str(self.folder / "start.json"),
            "SPARK_API_KEY_FILE": str(self.folder / "api_key"),
            "HF_HOME": str(self.folder / "cache"),
            "TRITON_CACHE_DIR": str(self.folder / "cache/triton-cache"),
            "VLLM_CACHE_ROOT": str(self.folder / "cache/vllm-cache"),
            "FLASHINFER_WORKSPACE_BASE": str(self.folder / "cache/flashinfer"),
            "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "cache/nccl-fr/comm_lib_trace_rank_"),
            "PATH": self.engine.path,
        }
        (self.folder / "start.json").write_text(json.dumps(self.start))
        arguments = (command, "serve", "owner/name", "--port", "8888")
        with mock.patch.object(os, "execve", self.child):
            return run_shipped("rank.start", None, *arguments, apart=self.apart, **{**given, **env})

    def child(self, program: str, command: list[str], env: dict[str, str]) -> NoReturn:
        done = subprocess.run(command, executable=program, env=env, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="")
        sys.exit(done.returncode)

    def started(self, **env: str) -> dict[str, str]:
        """The environment that the engine got."""
        done = self.run(**env)
        assert (done.returncode, done.stderr) == (7, ""), done.stdout + done.stderr
        text = (self.folder / "engine.env").read_text()
        return dict(item.split("=", 1) for item in text.split("\0") if item)

    def refused(self, **env: str) -> list[str]:
        """The lines of a rank that did not start its engine."""
        done = self.run(**env)
        assert not (self.folder / "engine.env").exists() and done.stderr == ""
        lines = done.stdout.splitlines()
        assert all(line.startswith("spark: ") for line in lines)
        assert done.returncode == 1
        return lines
