"""The first completion and the warm-up, asked on the head's node while the ranks are still watched."""

import contextlib
import json
import subprocess
import threading

from components.ssh.shell import python_line
from components.start.failure import StartFailed
from components.start.watched import Watched
from host.console import say
from loader import payload
from rank.probe import Answer, ProbeInputs


class Probe:
    """rank.probe as it runs on the head's node."""

    def __init__(self, head: Watched, inputs: ProbeInputs, limit_s: int) -> None:
        self.process = subprocess.Popen(
            head.ssh(python_line(inputs, limit_s)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._progress: list[str] = []
        self._out = ""
        readers = (self._read_progress, self._read_out)
        self._threads = [threading.Thread(target=reader, daemon=True) for reader in readers]
        for thread in self._threads:
            thread.start()
        assert self.process.stdin is not None
        # a connection that failed at once reads nothing; its stderr says why
        with contextlib.suppress(BrokenPipeError), self.process.stdin as script:
            script.write(payload("rank.probe"))

    def _read_progress(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._progress.append(line.rstrip())
                say(f"        {line.rstrip()}")

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self._out = out.read()

    def done(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        """End it, unless it has ended."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(5)

    def result(self) -> Answer:
        """What rank.probe printed. Raises StartFailed with its last line when no completion came back."""
        for thread in self._threads:
            thread.join(5)
        if self.process.returncode:
            raise StartFailed(
                self._progress[-1] if self._progress else f"the probe ended with {self.process.returncode}"
            )
        answer: Answer = json.loads(self._out)
        return answer
