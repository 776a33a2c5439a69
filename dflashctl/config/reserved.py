"""Environment variables that no host may set for its jobs: what dflashctl says of a run would not be so any more."""

_OWN = "DFLASHCTL_"
_SHELL = "a shell keeps it for itself, and would end before the job began"
_REASONS = {
    "PYTHONPATH": "it holds the code that jobs are started from, and nothing else",
    "PYTHONHOME": "it would put another Python's library in the place of the interpreter's own",
    "PYTHONUNBUFFERED": "jobs write their log at once, so that it can be followed",
    "CUDA_VISIBLE_DEVICES": "a start sets it to the GPUs that it leased, and --gpu chooses those",
    "CUDA_DEVICE_ORDER": "a start sets it, so that jobs count GPUs as the driver does",
    "MASTER_PORT": "a start sets it to the port that it leased",
    **dict.fromkeys(("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"), _SHELL),
}
_OF_THE_OPERATOR = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "HOSTNAME", "TERM", "TMPDIR", "SSH_AUTH_SOCK"),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LANGUAGE", "LC_ALL"),
        *("LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    )
)


def reserved_because(name: str, *, is_secret: bool = False) -> str | None:
    """Why the variable cannot be among a host's `variables`, or `secrets`; None: it can.

    A secret's value comes from the environment where you type, so that what only describes this machine is no secret
    of a host; as a variable, written down for the host, the same name is fine (LD_PRELOAD names an allocator there).
    """
    if name.startswith(_OWN):
        return "names with DFLASHCTL_ are dflashctl's own, and by one of them a run's processes are found"
    if is_secret and name in _OF_THE_OPERATOR:
        return "it describes the machine where you type, not the host"
    return _REASONS.get(name)
