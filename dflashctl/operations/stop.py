"""Ending a run on a host: asked politely, then for certain, never anybody else, and with proof at the end.

Each rung of the ladder is a short script that may be sent again, so that a lost link only delays it.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from pydantic import ValidationError

from dflashctl.errors import ConfigError, HostUnreachable, JobFailed, LinkLost
from dflashctl.operations.launch import Say, supervisor_text
from dflashctl.operations.supervised import GRACE_S, StopProof
from dflashctl.transport.files import read_script
from dflashctl.transport.shell import Script, Shell
from dflashctl_remote.spec.process import ExitRecord, ProcessToken

STEP_S = 30.0
LINK_S = 30.0
"""So long after the grace a lost link is waited for."""
LINK_PAUSE_S = 2.0
COUNTDOWN_S = 5.0
START_S = 5.0
"""A run whose start has begun writes down who it is within this time."""
IDLE_SUPERVISOR_S = 3.0
"""Past the grace a supervisor whose job lives on is not doing its work."""
SWEEP_S = 25.0
"""It may need so long to end what the job left behind and to close the log."""
KILL_TRIES = 3
PROOF_TRIES = 4
PROOF_PAUSE_S = 1.0
"""A driver gives memory back a moment after the process is gone."""
IDLE_GPU_MIB = 256
"""Drivers keep some for themselves."""
VALUES = ("token", "who_json", "grace_s", "with_supervisor", "ended")


def stop(
    shell: Shell,
    folder: str,
    *,
    who: str,
    grace_s: float = GRACE_S,
    say: Say = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> StopProof:
    """Stop the run in a folder of the host, under a supervisor or not, and prove that nothing of it is left.

    Of a run that has ended it only proves that. Raises ConfigError if there is no such run, JobFailed if something
    outlives SIGKILL or its processes cannot be told from others', HostUnreachable if nothing was done, LinkLost if the
    outcome is not known: the same call settles it.
    """
    return _Ladder(shell, folder, who, grace_s, say, clock, pause).climb()


def stop_script(folder: str, step: str, seen: str = "", **values: str) -> Script:
    """One rung: look, ask, wait, kill or prove. See stop.sh."""
    assert set(values) <= set(VALUES)
    given = {name: values.get(name, "") for name in VALUES}
    text = supervisor_text("proc.sh", "lease.sh") + read_script(Path(__file__).parent, "stop.sh")
    return Script(
        f"stop: {step}",
        text,
        (
            ("folder", folder),
            ("step", step),
            ("seen", seen),
            *given.items(),
            ("family_py", supervisor_text("family.py")),
        ),
    )


@dataclass(frozen=True)
class _State:
    """What a step told."""

    lines: dict[str, str]
    gpus: tuple[tuple[str, str], ...]
    """Line and value of each line about a GPU."""

    @property
    def presence(self) -> str:
        return self.lines["presence"]

    @property
    def members(self) -> list[str]:
        """pid:ticks."""
        return self.lines["members"].split()

    @property
    def is_over(self) -> bool:
        return self.presence != "alive" and not self.members

    @property
    def end(self) -> ExitRecord | None:
        try:
            return ExitRecord.model_validate_json(self.lines["exit"]) if self.lines["exit"] else None
        except ValidationError:
            return None


class _Ladder:
    def __init__(
        self,
        shell: Shell,
        folder: str,
        who: str,
        grace_s: float,
        say: Say,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._shell, self._folder, self._say = shell, folder, say
        self._name = folder.rstrip("/").rpartition("/")[2]
        self._who, self._grace_s = who, grace_s
        self._clock, self._pause = clock, pause
        self._began_s = clock()
        self._has_answered = False
        self._is_silent = False
        self._token = ""
        self._seen: dict[str, None] = {}
        self._killed: dict[int, None] = {}

    def climb(self) -> StopProof:
        look = self._look()
        if look.presence == "another boot":
            self._say(f"{self._name} is gone with the reboot of {self._shell.name}: nothing is signalled")
            return self._proof(look, "gone with the reboot")
        if look.is_over and (self._token or look.end is not None):
            return self._proven("was gone already")
        is_supervised = bool(look.lines["attempt"]) and look.presence == "alive"
        state = self._ask()
        if not self._token:
            state = self._wait_for_token()
            is_supervised = state.presence == "alive"
        if not state.is_over:
            state = self._wait(is_supervised)
        if not state.is_over:
            self._kill(is_supervised)
        outcome = "ended when asked" if self._token or self._seen else "never came up"
        return self._proven(outcome, has_to_record=bool(look.lines["attempt"]))

    def _look(self) -> _State:
        look = self._step("look")
        host = self._shell.name
        if look.lines.get("folder") == "none":
            raise ConfigError(
                f"there is no run {self._name} in {self._folder} on {host}", hint=f"dflashctl train list --host {host}"
            )
        self._token = look.lines["token"]
        if not self._token and not look.lines["attempt"]:
            raise ConfigError(
                f"{self._folder} on {host} holds no token.json: who its process is was never written down",
                hint=f"dflashctl train list --host {host}",
            )
        if look.presence in ("unreadable", "another namespace", "another run"):
            raise JobFailed(self._cannot_tell(look.presence), host=host, hint="nothing was signalled")
        if "now_ticks" in look.lines:
            was = ProcessToken.model_validate_json(self._token)
            self._say(
                f"process {was.pid} is another one by now, and not signalled: {self._name}'s started at tick "
                f"{was.start_ticks} for user {was.uid}, this one at {look.lines['now_ticks']} for user "
                f"{look.lines['now_uid']}"
            )
        return look

    def _cannot_tell(self, presence: str) -> str:
        if presence == "unreadable":
            return f"token.json in {self._folder} on {self._shell.name} cannot be read"
        if presence == "another run":
            return (
                f"token.json in {self._folder} on {self._shell.name} is another run's: the folder, or that file, was "
                "copied from it"
            )
        was = ProcessToken.model_validate_json(self._token)
        return (
            f"{self._name} was started in PID namespace {was.pid_namespace}, which this shell of {self._shell.name} is "
            "not in: log in to that container, or, if that was started anew, the run is gone with it"
        )

    def _ask(self) -> _State:
        who = json.dumps(self._who)
        state = self._step("ask", token=self._token, who_json=who, grace_s=str(ceil(self._grace_s)))
        if "note" in state.lines:
            self._say(f"stop.requested could not be written in {self._folder}")
        return state

    def _wait_for_token(self) -> _State:
        """Of a run that is being started. Its supervisor heeds the note, which is there by now."""
        self._say(f"{self._name} is being started; waiting for its supervisor")
        began_s = self._clock()
        while True:
            self._step("wait")
            look = self._step("look")
            self._token = look.lines["token"]
            if self._token and not look.is_over:
                return self._ask()
            if self._token or look.end is not None:
                return look
            limit_s = START_S * 6 if look.lines["starting"] == "1" else START_S
            if self._clock() - began_s > limit_s:
                return look

    def _wait(self, is_supervised: bool) -> _State:
        began_s = self._clock()
        said_s = -COUNTDOWN_S
        while True:
            passed_s = self._clock() - began_s
            left_s = max(0.0, self._grace_s - passed_s)
            if passed_s - said_s >= COUNTDOWN_S and left_s > 0:
                said_s = passed_s
                self._say(f"asked {self._name} to end ({left_s:.0f} s left)")
            state = self._step("wait", token=self._token)
            limit_s = self._grace_s
            if is_supervised and state.presence == "alive":
                limit_s += IDLE_SUPERVISOR_S if state.lines["job_lives"] == "1" else SWEEP_S
            is_left_over = is_supervised and state.presence != "alive"
            if state.is_over or is_left_over or self._clock() - began_s >= limit_s:
                return state

    def _kill(self, is_supervised: bool) -> None:
        for with_supervisor in ("0", "1"):
            for _ in range(KILL_TRIES):
                state = self._step("kill", token=self._token, with_supervisor=with_supervisor)
                pids = [int(member.partition(":")[0]) for member in state.lines["killed"].split()]
                if pids:
                    self._say(f"killed process {', '.join(map(str, pids))} of {self._name}")
                self._killed.update(dict.fromkeys(pids))
                if not state.lines["due"]:
                    break
            if not state.is_over and with_supervisor == "0":
                # Its supervisor writes down how it ended, if it can; the log's last helper ends by itself.
                state = self._step("wait", token=self._token)
            if state.is_over:
                return

    def _proven(self, outcome: str, *, has_to_record: bool = False) -> StopProof:
        for tries_left in reversed(range(PROOF_TRIES)):
            end = self._end_record() if has_to_record else ""
            state = self._step("prove", token=self._token, ended=end)
            proof = self._proof(state, outcome)
            if not tries_left or not (proof.survivors or proof.ports_held or proof.gpus_held):
                break
            self._pause(PROOF_PAUSE_S)
        if proof.survivors:
            raise JobFailed(
                f"process {', '.join(map(str, proof.survivors))} of {self._name} on {self._shell.name} outlives "
                "SIGKILL; it hangs in the kernel, most often in a driver"
                + (f", and GPU {', '.join(proof.gpus_held)} is still in use" if proof.gpus_held else ""),
                host=self._shell.name,
                hint="it ends when the driver lets go of it, at the latest with a reboot",
            )
        return proof

    def _end_record(self) -> str:
        """For a run whose supervisor was killed: what it would have written, as far as it is known."""
        is_killed = bool(self._killed)
        return json.dumps(
            {"code": 137 if is_killed else None, "signal": 9 if is_killed else None, "at_s": time.time(), "stop": True}
        )

    def _proof(self, state: _State, outcome: str) -> StopProof:
        end = state.end
        killed = list(self._killed)
        if outcome == "ended when asked":
            if end is not None and end.killed and state.lines["job"]:
                killed.insert(0, int(state.lines["job"].partition(":")[0]))
            outcome = "had to be killed" if killed else outcome
        leased = {name.removeprefix("gpu-") for name in state.lines.get("leases", "").split()}
        return StopProof(
            outcome,
            end.code if end else None,
            end.signal if end else None,
            tuple(dict.fromkeys(killed)),
            tuple(int(member.partition(":")[0]) for member in state.members),
            (int(state.lines["port"]),) if "port" in state.lines else (),
            tuple(sorted(_in_use(state.gpus) & leased)),
        )

    def _step(self, step: str, **values: str) -> _State:
        script = stop_script(self._folder, step, " ".join(self._seen), **values)
        while True:
            try:
                answer = self._shell.run(script, timeout_s=STEP_S)
                break
            except HostUnreachable as error:
                if not self._has_answered and not isinstance(error, LinkLost):
                    raise
                if self._clock() - self._began_s > self._grace_s + LINK_S:
                    raise LinkLost(
                        f"whether {self._name} on {self._shell.name} has ended is unknown: {error.message}",
                        host=self._shell.name,
                        hint="run the same command again once the host can be reached; that settles it",
                    ) from error
                if not self._is_silent:
                    self._say(f"{self._shell.name} does not answer; asking again every {LINK_PAUSE_S:g} s")
                self._is_silent = True
                self._pause(LINK_PAUSE_S)
        self._has_answered, self._is_silent = True, False
        if answer.code != 0:
            raise JobFailed(
                f"{script.name} on {self._shell.name} ended with code {answer.code}: {answer.err.strip()}",
                host=self._shell.name,
            )
        state = _parse(answer.out.decode("utf-8", "replace"))
        self._seen.update(dict.fromkeys(state.lines.get("members", "").split()))
        return state


def _parse(out: str) -> _State:
    pairs = [line.partition("=")[::2] for line in out.splitlines() if "=" in line]
    return _State(dict(pairs), tuple((name, value) for name, value in pairs if name in ("memory", "apps")))


def _in_use(gpus: tuple[tuple[str, str], ...]) -> set[str]:
    """UUIDs of those that a process holds, or whose memory is taken by one that the driver does not name."""
    used = set()
    for name, value in gpus:
        uuid, _, number = value.partition(" ")
        if name == "apps" or (number.isdigit() and int(number) > IDLE_GPU_MIB):
            used.add(uuid)
    return used
