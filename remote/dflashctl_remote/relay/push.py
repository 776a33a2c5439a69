"""The source's own way to the target, where there is one: a writer started from here, by the ssh that is here."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from typing import Any

from dflashctl_remote.relay import wire
from dflashctl_remote.relay.agent import Line, Refused

CONNECT_S = 25.0
PING_S = 5.0
END_S = 5.0


class Push:
    def __init__(self, line: Line, argv: list[str], script: str, sentinel: str) -> None:
        self.line = line
        self.lock = threading.Lock()
        """Held while a message goes."""
        self.begun = -1
        """The chunk whose bytes have gone, and not yet that they count."""
        self.told_s = 0.0
        try:
            self.child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise Refused("direct", f"{argv[0]}: {error.strerror}") from None
        assert self.child.stdin is not None and self.child.stdout is not None
        self.asked, self.answers = self.child.stdin.fileno(), self.child.stdout.fileno()
        try:
            wire.write_all(self.asked, script.encode())
            self.await_ready(sentinel)
        except (OSError, EOFError):
            raise Refused("direct", f"{argv[-1]} could not be reached from here: {self.why()}") from None

    def await_ready(self, sentinel: str) -> None:
        """Past whatever a login shell says; the program speaks no further until it is asked."""
        text, wanted = b"", (sentinel + " ready\n").encode()
        end_s = time.monotonic() + CONNECT_S
        while not text.endswith(wanted):
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self.answers], [], [], left_s)[0]:
                raise EOFError
            piece = os.read(self.answers, 1)
            if not piece:
                raise EOFError
            text = (text + piece)[-4096:]

    def why(self) -> str:
        """The last line of what ssh says of it."""
        self.end()
        assert self.child.stderr is not None
        words = self.child.stderr.read(4096).decode("utf-8", "replace").strip().rpartition("\n")[2]
        return words or "it does not answer"

    def ask(self, op: str, payload: Any) -> Any:
        wire.write_all(self.asked, wire.message({"op": op}, payload))
        fields, told = wire.read_message(self.answers)
        if fields.get("error"):
            raise Refused("direct", str(told["text"]))
        return told

    def listen(self) -> None:
        """From now on the operator hears what the writer says, and the writer hears that somebody is here."""
        threading.Thread(target=self.pass_on, daemon=True).start()
        threading.Thread(target=self.ping, daemon=True).start()

    def pass_on(self) -> None:
        try:
            while True:
                fields, payload = wire.read_message(self.answers)
                fields.pop("n", None)
                self.line.say(payload, **fields)
        except (OSError, EOFError, ValueError):
            # The operator finds this side gone, and begins anew.
            os._exit(0)

    def ping(self) -> None:
        while True:
            time.sleep(PING_S)
            if self.lock.acquire(blocking=False):
                try:
                    # Never between a chunk's bytes and the word that they count.
                    if self.begun < 0:
                        wire.write_all(self.asked, wire.header(op="ping"))
                except OSError:
                    return
                finally:
                    self.lock.release()

    def begin(self, number: int, place: Any, how: str, size: int) -> int:
        wire.write_all(
            self.asked, wire.message({"op": "write", "id": number}, place) + wire.header(id=number, how=how, n=size)
        )
        self.begun = number
        self.line.say(id=number, sent=size, how=how)
        return self.asked

    def goes_on(self) -> None:
        """Bytes go, however slowly: the operator, who sees none of them, hears of it now and then."""
        now_s = time.monotonic()
        if now_s - self.told_s >= PING_S:
            self.told_s = now_s
            self.line.say(id=self.begun, on=1)

    def confirm(self, number: int) -> None:
        with self.lock:
            wire.write_all(self.asked, wire.header(id=number, ok=1))
            self.begun = -1

    def refuse(self, number: int) -> None:
        """The bytes that went do not count; of a chunk of which none went the writer knows nothing."""
        with self.lock:
            if self.begun == number:
                wire.write_all(self.asked, wire.header(id=number, ok=0))
            self.begun = -1

    def end(self) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.close()
            self.child.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self.child.kill()
            self.child.wait()
