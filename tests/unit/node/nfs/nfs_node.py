"""A node with systemd and a kernel NFS server, as far as the export's script sees them: files and small programs."""

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from host import as_root
from nfs import export, server
from tests.unit.executables import Recorder

SYSTEMCTL = """
[ "$1" != --quiet ] || shift
case "$1" in
  is-active) [ -f {on} ] && echo active || {{ echo inactive; exit 3; }} ;;
  enable) : >{enabled} ;;
  disable) rm -f {enabled} ;;
  restart) : >{on}; exportfs -r || true; printf 'sl a b c\\n0: 00000000:0801 00000000:0000 0A\\n' >{sockets} ;;
  stop) rm -f {on} {sockets} {etab} ;;
esac
"""
EXPORTFS = """
# as exportfs does with an entry that is there twice: it takes it, and fails
cat {exports} {folder}/*.exports 2>/dev/null | awk >{etab} '
  !/^#/ {{ for (i = 2; i <= NF; i++) {{ print $1 "\\t" $i; twice += seen[$1, $i]++ > 0 }} }}
  END {{ exit twice > 0 }}'
"""


class Node:
    """The head of stack dev, with its NFS server off and nothing exported."""

    def __init__(self, folder: Path, recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
        self.recorder = recorder
        self.home = folder / "home"
        self.exports = folder / "etc/exports"
        self.etab, self.sockets = folder / "etab", folder / "tcp"
        self.on, self.enabled = folder / "on", folder / "enabled"
        self.grace = folder / "v4_end_grace"
        self.mounts = folder / "mountinfo"
        self.mounts.write_text("1 0 8:1 / / rw - ext4 /dev/sda rw\n")
        self.exports.parent.mkdir()
        self.ours("dev")
        self.hub.mkdir(parents=True)
        places = {"on": self.on, "enabled": self.enabled, "sockets": self.sockets, "etab": self.etab}
        recorder.answer("systemctl", SYSTEMCTL.format(**places))
        recorder.answer(
            "exportfs", EXPORTFS.format(exports=self.exports, folder=self.file("dev").parent, etab=self.etab)
        )
        recorder.answer("sudo", 'shift 2; exec "$@"')
        recorder.answer("docker", "exit 1")
        patch.setenv("HOME", str(self.home))
        patch.setenv("DOCKER_HOST", f"unix://{folder / 'no-docker.sock'}")
        patch.setattr(as_root.os, "geteuid", lambda: 1000)  # type: ignore[attr-defined]
        patch.setattr(export, "EXPORTS", self.exports)
        patch.setattr(export, "MOUNTS", self.mounts)
        patch.setattr(export, "PATH", str(recorder.folder))
        patch.setattr(export, "START", export.START.replace(str(server.GRACE), str(self.grace)))
        patch.setattr(server, "TABLE", self.etab)
        patch.setattr(server, "SOCKETS", (self.sockets, folder / "tcp6"))
        patch.setattr(subprocess, "run", partial(self.run, subprocess.run))

    def run(self, run: Any, argv: Sequence[str], **options: Any) -> Any:
        """Most of what is started are questions to systemd, which are answered here and at once."""
        verb, on = (argv[1], self.on.exists()) if argv[0] == "systemctl" else ("", False)
        answers = {
            "is-active": "active" if on else "inactive",
            "is-enabled": "enabled" if self.enabled.exists() else "disabled",
            "list-units": "ssh.service\n" + "nfs-server.service loaded\nrpcbind.socket loaded\n" * on,
        }
        if verb in answers and (self.recorder.folder / "systemctl").exists():
            return subprocess.CompletedProcess(argv, 0, answers[verb], "")
        return run(argv, **options)

    @property
    def hub(self) -> Path:
        return self.home / ".cache/huggingface/hub"

    def ours(self, stack: str) -> Path:
        """Our folder of a stack."""
        folder = self.home / ".local/share/spark-stack" / stack
        folder.mkdir(parents=True)
        (folder / ".spark-stack").write_text(stack + "\n")
        return folder

    def file(self, stack: str) -> Path:
        return self.exports.parent / f"exports.d/spark-stack-{stack}.exports"

    def serve(self, *lines: str) -> None:
        """Somebody's server, started with these lines in /etc/exports."""
        self.exports.write_text("".join(f"{line}\n" for line in lines))
        self.sudo("systemctl", "restart", "nfs-server")
        self.enabled.touch()

    def hold_port(self) -> None:
        """Something else listens on 2049."""
        self.sockets.write_text("sl a b c\n0: 00000000:0801 00000000:0000 0A\n")

    def sudo(self, *command: str) -> None:
        as_root.run(as_root.Way("root", ()), command, timeout_s=5)

    def changes(self) -> list[list[str]]:
        """What was changed on the node as root so far."""
        return [call[6:] for call in self.recorder.calls("sudo") if call[6:] != ["true"]]

    def state(self) -> dict[str, bool]:
        return {"on": self.on.exists(), "enabled": self.enabled.exists()}
