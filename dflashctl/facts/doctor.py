"""How a host stands as a place to run things: shell, processes, sessions, clock. Pure: doctor.sh asks."""

import re
from collections.abc import Iterator

from dflashctl.facts.finding import Finding, Told

NEEDED_TOOLS = (
    *(
        "base64",
        "cat",
        "chmod",
        "cut",
        "date",
        "dd",
        "df",
        "env",
        "find",
        "grep",
        "head",
        "id",
        "ls",
        "mkdir",
        "mkfifo",
    ),
    *("mv", "readlink", "rm", "rmdir", "sed", "setsid", "sleep", "sort", "stat", "sync", "tail", "tr", "uname", "wc"),
)
USEFUL_TOOLS = ("timeout", "sha256sum", "getent")
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of linux/proc_ns.h: the machine's own namespace has this inode, every other one another."""
WORKING_TOOLS = "bcaa"
"""What tail -c, head -c and base64 -d make of doctor.sh's three probes."""
SLOW_S = 0.5
SKEW_S = 2.0


def link_finding(way: str, rtt_s: float, connect_s: float | None) -> Finding:
    """`way`: in words. `connect_s`: None where there is nothing to connect to."""
    text = f"{way}; answers in {_seconds(rtt_s)}"
    if connect_s is not None:
        text += f", connecting took {_seconds(connect_s)}"
    return Finding("link", "note" if rtt_s > SLOW_S else "ok", text + ("; slow" if rtt_s > SLOW_S else ""))


def noise_finding(num_bytes: int, start: bytes) -> Finding:
    if num_bytes == 0:
        return Finding("stdout", "ok", "the login shell prints nothing of its own")
    words = shown(start.decode("utf-8", "replace"))
    return Finding(
        "stdout",
        "note",
        f"the login shell prints {num_bytes} bytes before every answer ({words!r}); harmless here, scp and rsync break",
        "print in ~/.bashrc, ~/.cshrc or config.fish only if the shell is interactive",
    )


def clock_finding(told: str, before_s: float, after_s: float) -> Finding:
    """`told`: the host's `date +%s.%N`, asked for between the two times of this machine (Unix time)."""
    found = re.match(r"(\d+)(\.\d+)?", told.strip())
    if found is None:
        return Finding("clock", "unknown", "date does not tell the time")
    host_s, precision_s = float(found[0]), 0.0 if found[2] else 1.0
    # It was some time between the two, and is cut to whole seconds where date knows no parts of one.
    least_s, most_s = host_s - after_s, host_s + precision_s - before_s
    if least_s <= 0 <= most_s:
        return Finding("clock", "ok", f"as here, within {_seconds(max(most_s, -least_s))}")
    skew_s = least_s if least_s > 0 else most_s
    text = f"{_seconds(abs(skew_s))} {'ahead of' if skew_s > 0 else 'behind'} this machine"
    if abs(skew_s) <= SKEW_S:
        return Finding("clock", "ok", text)
    return Finding(
        "clock",
        "note",
        f"{text}: ages and times of its runs are told by its own clock",
        "set it by NTP: timedatectl set-ntp true, or chrony; a container has its machine's clock",
    )


def system_findings(told: Told) -> Iterator[Finding]:
    """Of doctor_identity, doctor_tools, doctor_processes and doctor_sessions."""
    yield _login_shell(told)
    yield _tools(told)
    yield _processes(told)
    yield _sessions(told)
    yield _cgroups(told)
    yield _kernel(told)


def _login_shell(told: Told) -> Finding:
    shell = told.one("login_shell")
    if not shell:
        return Finding("login shell", "unknown", "neither getent nor /etc/passwd nor $SHELL tells")
    kind = shell.rpartition("/")[2]
    other = (
        " (no POSIX shell; fine: scripts run under /bin/sh)" if kind in ("csh", "tcsh", "fish", "xonsh", "nu") else ""
    )
    return Finding("login shell", "ok", f"{shown(shell)}{other}, user {shown(told.one('user'))}")


def _tools(told: Told) -> Finding:
    program = told.one("sh_program")
    name = program.rpartition("/")[2] or "unknown"
    version = f" {told.one('sh_bash')}" if told.one("sh_bash") else ""
    missing = told.one("tools_missing").split()
    needed = [tool for tool in missing if tool not in USEFUL_TOOLS]
    if needed:
        text = f"{name}{version} without {', '.join(needed)}"
        return Finding(
            "sh", "bad", text, "install coreutils, findutils, grep, gzip, sed, tar and util-linux, or busybox"
        )
    if told.one("tools_work") != WORKING_TOOLS:
        text = f"{name}{version}: tail -c, head -c or base64 -d do not what POSIX and coreutils say"
        return Finding("sh", "bad", text, "put coreutils or busybox first on PATH")
    if told.one("printf_builtin") != "1":
        text = f"{name}{version}: printf is a program, so others would see in the list of processes what it is given"
        return Finding("sh", "bad", text, "make /bin/sh a link to dash, bash or busybox")
    without = f", without {', '.join(missing)}" if missing else ""
    return Finding("sh", "ok", f"{name}{version} ({program}){without}")


def _processes(told: Told) -> Finding:
    namespace = re.search(r"\d+", told.one("pid_namespace"))
    if namespace is None:
        cure = "mount -t proc proc /proc"
        return Finding("processes", "bad", "there is no /proc, and so no process can be told from another", cure)
    if len(told.one("nspid").split()) > 1:
        text = "/proc is that of another PID namespace: the numbers in it are not those that signals take"
        return Finding("processes", "bad", text, "mount -t proc proc /proc, inside the container")
    init = f"PID 1 is {shown(told.one('init'))}" if told.one("init") else "PID 1 does not show its name"
    if int(namespace[0]) == INITIAL_PID_NAMESPACE:
        where = "the machine's own PID namespace"
    else:
        kind = told.one("container")
        where = f"a PID namespace of its own (container{f', {shown(kind)}' if kind else ''})"
    hidden = re.search(r"hidepid=(\w+)", told.one("proc_options"))
    if told.one("uid") != "0" and (not told.has("init_visible") or (hidden and hidden[1] not in ("0", "off"))):
        name = hidden[0] if hidden else "hidden"
        text = f"{where}; processes of other users cannot be seen ({name}): who else holds a GPU is not known"
        return Finding("processes", "note", text, "mount -o remount,hidepid=0 /proc, or gid= with a group of yours")
    return Finding("processes", "ok", f"{where}; {init}")


def _sessions(told: Told) -> Finding:
    if not told.has("systemd"):
        return Finding("sessions", "unknown", "it does not tell whether systemd runs it")
    if told.one("systemd") != "1":
        return Finding("sessions", "ok", "no systemd here, none needed: a supervisor of its own holds each run")
    paths = told.all("cgroup")
    if told.one("sshd_unit") == "KillMode=control-group":
        text = "sshd is started anew for each connection, and its unit kills all that it left"
        return Finding("sessions", "bad", text, "KillMode=process in that unit (systemctl edit), or a listening sshd")
    if not any("session-" in path and ".scope" in path for path in paths):
        return Finding("sessions", "ok", "systemd, and this login is no session of logind: nothing is ended at logout")
    return _logind(told)


def _logind(told: Told) -> Finding:
    user, lingers = told.one("user"), "on" if told.has("linger") else "off"
    kills = told.one("logind_KillUserProcesses")
    if not kills:
        text = "systemd, and logind does not tell whether it ends processes at logout"
        return Finding("sessions", "unknown", text, "grep KillUserProcesses /etc/systemd/logind.conf")
    only, excluded = _names(told, "logind_KillOnlyUsers"), _names(told, "logind_KillExcludeUsers")
    if kills == "yes" and user not in excluded and (not only or user in only):
        text = f"systemd ends all processes of {user} at logout (KillUserProcesses=yes; lingering does not prevent it)"
        cure = f"KillExcludeUsers=root {user} in /etc/systemd/logind.conf, then systemctl restart systemd-logind"
        return Finding("sessions", "bad", text, cure)
    return Finding("sessions", "ok", f"systemd leaves processes alone at logout (lingering is {lingers}, not needed)")


def _names(told: Told, key: str) -> list[str]:
    return told.one(key).split()


def _cgroups(told: Told) -> Finding:
    if not told.has("cgroup") or not told.has("cgroup_v2"):
        return Finding("cgroups", "unknown", "/proc/self/cgroup does not tell")
    if told.one("cgroup_v2") != "1":
        return Finding("cgroups", "ok", "version 1: a stop finds a run's processes by their marker")
    rights = "writable" if told.has("cgroup_writable") else "not writable"
    kill = "cgroup.kill there" if told.has("cgroup_kill") else "no cgroup.kill"
    return Finding("cgroups", "ok", f"version 2, {rights}, {kill}; a stop finds a run's processes by their marker")


def _kernel(told: Told) -> Finding:
    version, umask = told.one("kernel"), told.one("umask")
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return Finding("kernel", "unknown", "uname -r does not tell")
    text = f"Linux {shown(version)}, umask {shown(umask)}"
    if (int(found[1]), int(found[2])) < (5, 3):
        text += "; no pidfd, so a process is compared with its token just before a signal, not in the same moment"
        return Finding("kernel", "note", text)
    return Finding("kernel", "ok", f"{text}, pidfd there")


def shown(text: str) -> str:
    """What moves a terminal's cursor becomes a question mark, what is long is cut."""
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return line if len(line) <= 80 else f"{line[:77]}..."


def _seconds(seconds_s: float) -> str:
    return f"{seconds_s * 1000:.0f} ms" if seconds_s < 1 else f"{seconds_s:.1f} s"
