"""Ending a server by its token: politely first, then for certain, and never anybody else."""

import signal
from collections.abc import Callable

from dflashctl.engines.base import Engine
from dflashctl.errors import EngineUnhealthy
from dflashctl.transport.base import Transport
from dflashctl.transport.process import interrupts_held
from dflashctl_remote.spec.process import ProcessToken

Say = Callable[[str], None]
COUNTDOWN_S = 5.0
KILL_WAIT_S = 5.0


def end(token: ProcessToken, engine: Engine, transport: Transport, say: Say, *, kills_at_ctrl_c: bool = False) -> str:
    """SIGTERM to the server, then SIGKILL to all that is left of it; says what it took.

    Ctrl-C while it is waited for is raised, or, with `kills_at_ctrl_c`, ends the wait.
    Raises EngineUnhealthy if something outlives SIGKILL.
    """
    before: tuple[ProcessToken, ...] = ()
    try:
        # Looked for while the server lives: with it goes what tells its session from a stranger's.
        before = transport.family(token)
        if transport.send(token, signal.SIGTERM):
            _wait(token, engine.shutdown.grace_s, transport, say, "; Ctrl-C kills it" if kills_at_ctrl_c else "")
    except KeyboardInterrupt:
        if not kills_at_ctrl_c:
            raise
    with interrupts_held():
        return _kill(token, before, transport, say)


def _wait(token: ProcessToken, grace_s: float, transport: Transport, say: Say, remark: str) -> None:
    left_s = grace_s
    say(f"asked process {token.pid} to end ({left_s:g} s left{remark})")
    while not transport.wait_gone(token, min(COUNTDOWN_S, left_s)):
        left_s -= COUNTDOWN_S
        if left_s <= 0:
            return
        say(f"process {token.pid} has not ended yet ({left_s:g} s left{remark})")


def _kill(token: ProcessToken, before: tuple[ProcessToken, ...], transport: Transport, say: Say) -> str:
    left = _alive({*before, *transport.family(token)}, transport)
    if not left:
        return f"process {token.pid} ended when asked; nothing of it is left"
    say(f"killing process {_pids(left)}")
    for member in left:
        transport.send(member, signal.SIGKILL)
    for member in left:
        transport.wait_gone(member, KILL_WAIT_S)
    survivors = _alive({*left, *transport.family(token)}, transport)
    if survivors:
        raise EngineUnhealthy(f"process {_pids(survivors)} outlives SIGKILL (it may hang in a driver)")
    return f"process {_pids(left)} had to be killed; nothing of it is left"


def _alive(members: set[ProcessToken], transport: Transport) -> list[ProcessToken]:
    living = (member for member in members if transport.presence(member) == "alive")
    return sorted(living, key=lambda member: member.pid)


def _pids(members: list[ProcessToken]) -> str:
    return ", ".join(str(member.pid) for member in members)
