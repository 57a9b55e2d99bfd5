"""A SuperLink and its SuperNodes as processes of this machine, which end with the block.

Every process is started in a session of its own, so that Ctrl-C is ours to handle, and is told by
the kernel when we die, however we do (Linux).  Flower starts further processes, some of them
detached: all inherit a mark in their environment, by which those that do not go are found.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

from fedslice.cli.deployment.certificates import Certificates
from fedslice.deploy.flower import MISSING
from fedslice.errors import InputError, RoundError

MARK = "FEDSLICE_LOOPBACK"
WITHOUT_INSTALLING = ["--disable-runtime-dependency-installation"]  # all is here already
HERE = "127.0.0.1"
NAME = "here"  # of the connection, in Flower's configuration
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",  # a second otherwise, for every letter
}
# until the program itself runs: PR_SET_PDEATHSIG, SIGTERM
MORTAL = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.argv[1], sys.argv[1:])"""
IMPATIENT = str(Path(__file__).with_name("supernode.py"))
START = 60.0  # seconds that a SuperLink may take to answer
GRACE = 5.0  # and that processes have to end by themselves


class Loopback:
    """The processes of a trial, with their logs in ``logs`` and Flower's home in ``home``.  With
    ``certificates`` all speak TLS, and nodes need a key that is registered."""

    def __init__(self, logs: Path, home: Path, certificates: Certificates | None = None) -> None:
        self.logs, self.home, self.certificates = logs, home, certificates
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mark = secrets.token_hex(8)
        tools = str(Path(sys.executable).parent)  # Flower starts its own by name
        path = os.pathsep.join([tools, os.environ.get("PATH", "")])
        own = {"FLWR_HOME": str(home), "PATH": path, MARK: self.mark}
        self.environment = {**os.environ, **QUIET, **own}
        self.port = 0

    def __enter__(self) -> "Loopback":
        if shutil.which("flower-superlink", path=self.environment["PATH"]) is None:
            raise InputError(MISSING)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            self._start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- starting ----------------------------------------------------------------------------------

    def _start_superlink(self) -> None:
        self.port = free_port()
        keys = self.certificates
        secure = ["--insecure"] if keys is None else [*keys.of_server(), "--enable-supernode-auth"]
        there = ["--host", HERE, "--port", str(self.port)]
        self.start("superlink", "flower-superlink", *secure, *there, *WITHOUT_INSTALLING)
        way = "insecure = true" if keys is None else f'root-certificates = "{keys.authority}"'
        known = f'default = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{self.address}"'
        (self.home / "config.toml").write_text(f"[superlink]\n{known}\n{way}\n")
        self._wait_for_superlink()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HERE}:{self.port}"

    def start_node(
        self, name: str, config: Mapping[str, str | bool], key: Path | None = None
    ) -> None:
        """A SuperNode with this ``--node-config``."""
        keys = self.certificates
        secure = ["--insecure"] if keys is None else ["--root-certificates", str(keys.authority)]
        if key is not None:
            secure += ["--auth-supernode-private-key", str(key)]
        # as in TOML, where texts are in JSON's quotes
        told = " ".join(
            f"{key}={json.dumps(value)}" for key, value in {"name": name, **config}.items()
        )
        there = ["--superlink", self.address, "--port", str(free_port())]
        self.start(name, sys.executable, "-P", IMPATIENT, *secure, *there, "--node-config", told)

    def start(self, name: str, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """A process with its own log, which ends with the others."""
        if name in self.processes:
            self.kill(name)
        found = shutil.which(program, path=self.environment["PATH"])
        assert found is not None
        command = [found, *arguments]
        if sys.platform == "linux":
            command = [sys.executable, "-c", MORTAL, *command]
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        return self.processes[name]

    def _wait_for_superlink(self) -> None:
        kind = "http" if self.certificates is None else "https"
        trusted = None
        if self.certificates is not None:
            trusted = ssl.create_default_context(cafile=str(self.certificates.authority))
        end = time.monotonic() + START
        while time.monotonic() < end:
            self.check()
            try:
                url = f"{kind}://{self.address}/health"
                with urllib.request.urlopen(url, timeout=1, context=trusted):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RoundError(f"the SuperLink did not answer within {START:g} s; logs: {self.logs}")

    # -- using -------------------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> str:
        """What the command ``flwr`` prints."""
        tool = shutil.which("flwr", path=self.environment["PATH"])
        assert tool is not None
        done = subprocess.run(
            [tool, *arguments], capture_output=True, text=True, env=self.environment, check=False
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise RoundError(f"flwr {arguments[0]} failed: {said}; logs: {self.logs}")
        return done.stdout

    def check(self) -> None:
        """Raise if the SuperLink has ended; nodes may."""
        process = self.processes["superlink"]
        if process.poll() is not None:
            raise RoundError(f"the SuperLink ended ({process.returncode}); logs: {self.logs}")

    def kill(self, name: str) -> None:
        """SIGKILL for a process and all that it started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    # -- ending ------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all processes, and those that they started."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + GRACE
        for process in self.processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}
        while time.monotonic() < end and any(self.left()):
            time.sleep(0.05)
        for number in self.left():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def left(self) -> Iterator[int]:
        """The processes with our mark that are still there (Linux; elsewhere Flower's own watch
        over parents must do)."""
        sign = f"{MARK}={self.mark}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if sign in (place / "environ").read_bytes().split(b"\0"):
                    yield int(place.name)
            except OSError:  # gone, or somebody else's
                continue


def free_port() -> int:
    """A port of the loopback that nobody has at the moment.

    >>> 1024 <= free_port() < 2**16
    True
    """
    with closing(socket.socket()) as found:
        found.bind((HERE, 0))
        return int(found.getsockname()[1])
