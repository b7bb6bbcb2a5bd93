"""DPDK's testpmd on both ports, told what to do and asked what it counts."""

import os
import pty
import re
import subprocess
import time

PORTS = ("0000:01:00.0", "0000:02:00.0")
PROMPT = b"testpmd> "
KILL_S = 10
# So long it says nothing only when it waits for a command, or has much to do.
QUIET_S = 15


class Failure(Exception):
    """What is wrong, in words."""


class Testpmd:
    """One process of it; port 0 and port 1 are the two ends of the cable."""

    running = None

    def __init__(self, name, devargs=("", ""), options=()):
        self.log = open(f"/host/{name}.log", "wb")
        command = ["dpdk-testpmd", "-l", "0-1", "--no-telemetry", "--huge-dir", "/run/huge"]
        for port, arguments in zip(PORTS, devargs):
            command += ["-a", ",".join(filter(None, [port, arguments]))]
        command += ["--", "--interactive", "--total-num-mbufs=16384", *options]
        print(f"{name}: {' '.join(command)}", flush=True)
        # A terminal: what it says comes line by line.
        self.terminal, its_end = pty.openpty()
        os.set_blocking(self.terminal, False)
        self.process = subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=self.log)
        os.close(its_end)
        Testpmd.running = self
        self._answer(120)

    def _answer(self, limit_s):
        """What it says until it waits for the next command."""
        text, end = b"", time.monotonic() + limit_s
        quiet_since, asked = time.monotonic(), False
        # Packets that it shows may come behind the prompt.
        while PROMPT not in text:
            piece = self._read()
            text += piece
            if piece:
                quiet_since = time.monotonic()
            elif not asked and time.monotonic() > quiet_since + QUIET_S:
                # A packet that it showed may stand in the middle of the prompt: "testpmport 0d> ".
                os.write(self.terminal, b"\n")
                asked = True
            if not piece and self.process.poll() is not None:
                raise Failure(f"testpmd ended with {self.process.returncode}: {text[-500:]!r}")
            if not piece and time.monotonic() > end:
                raise Failure(f"no answer in {limit_s} s: {text[-500:]!r}")
        # If it was busy and not torn, there are two.
        return text.decode(errors="replace") + (self.listen(1) if asked else "")

    def _read(self):
        """What it has said since."""
        try:
            piece = os.read(self.terminal, 65536)
        except BlockingIOError:
            time.sleep(0.02)
            return b""
        except OSError:  # Nobody has the other end open.
            return b""
        self.log.write(piece)
        self.log.flush()
        return piece

    def tell(self, command, limit_s=60):
        """Lets it carry out a command; what it says about it."""
        os.write(self.terminal, command.encode() + b"\n")
        return self._answer(limit_s)

    def listen(self, seconds):
        """What it says meanwhile. It stops forwarding when nobody listens."""
        text, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            text += self._read()
        return text.decode(errors="replace")

    def counts(self, port):
        """The statistics of a port, extended ones included."""
        text = self.tell(f"show port stats {port}") + self.tell(f"show port xstats {port}")
        return {name: int(value) for name, value in re.findall(r"([\w-]+): +(\d+)", text)}

    def modes(self, port):
        """By which functions the port's first queues receive and send, in the driver's words; of
        sending no more than what becomes of data."""
        said = [self.tell(f"show {queue} info {port} 0") for queue in ("rxq", "txq")]
        found = [re.search(r"Burst mode: (.+)", text) for text in said]
        if not all(found):
            raise Failure(f"port {port} says not how it receives or sends: {said}")
        receives, sends = (mode[1].strip() for mode in found)
        words = [word for word in sends.split(" + ") if word == "INLINE" or word.endswith("MPW")]
        return [receives, " + ".join(words)]

    @classmethod
    def kill(cls):
        """Ends the last one at once, if it still runs: the next one needs its memory."""
        cls.running.process.kill()
        cls.running.process.wait(KILL_S)

    def end(self):
        """Ends it; it must do so in good order."""
        os.write(self.terminal, b"quit\n")
        while self.process.poll() is None:
            self._read()
        status = self.process.returncode
        if status:
            raise Failure(f"testpmd ended with {status}")
