"""The gate before protected hosts and runs: what touches one must name it, and nothing else opens it."""

from collections import Counter

from dflashctl.errors import ConfigError


def require_touch(
    what: str,
    *,
    host: str,
    is_host_protected: bool,
    run: str | None = None,
    is_run_protected: bool = False,
    given: tuple[str, ...] = (),
) -> None:
    """Let `what` (a command, as it was typed: `train stop`) through, or raise ConfigError.

    `given`: the values of --touch. Each protected thing must be named, one --touch each; a name that is neither the
    host nor the run is refused also where nothing is protected: whoever gave it means another machine.
    """
    touched = [name for name in (host, run) if name is not None]
    for name in given:
        if name not in touched:
            here = f"host {host}" if run is None else f"host {host} and run {run}"
            raise ConfigError(f"--touch {name}: `{what}` would touch {here}, not {name}", hint=_hint(touched))
    protected = [host] if is_host_protected else []
    if run is not None and is_run_protected:
        protected.append(run)
    missing = list((Counter(protected) - Counter(given)).elements())
    if missing:
        names = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        options = " ".join(f"--touch {name}" for name in missing)
        raise ConfigError(f"{names} {verb} protected: `{what}` needs {options}", hint="ask whoever protected it first")


def _hint(names: list[str]) -> str:
    return f"name what you mean to touch: {' or '.join(names)}"
