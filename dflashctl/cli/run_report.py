"""The last word on a run, wherever it ran."""

from dflashctl.cli.output import Output
from dflashctl.defaults import LOCAL
from dflashctl.errors import JobFailed
from dflashctl.facts.run_state import RunState


def report(state: RunState, out: Output) -> None:
    """Its state, and what it left. Raises JobFailed for one that ended badly."""
    host = state.run.host
    name = f"run {state.run.run_id}" + (f" on {host}" if host != LOCAL else "")
    if state.state in ("failed", "killed", "ended without a word", "lost to reboot", "elsewhere", "starting"):
        detail = state.detail or "it has not said anything yet"
        raise JobFailed(f"{name} {_verb(state)}: {detail}", host=host, hint=state.run.command("logs --raw"))
    saved = state.last_checkpoint
    left = f", newest checkpoint {saved.path}" if saved is not None else ""
    out.result(state, f"{name} {state.state}{left}")


def _verb(state: RunState) -> str:
    return {"starting": "has not started", "elsewhere": "is elsewhere"}.get(state.state, state.state)
