"""How fast the everyday commands are on hosts behind SSH: `make bench-remote`.

Three real hosts in network namespaces (tests/lab). All arms take turns in each round, and the ratios that matter are
printed: `train list` over all hosts against `ssh HOST true` of the slowest, a confirmed launch, connections a command.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "remote"), str(ROOT / "tests" / "lab")]

from dflashctl.operations.bundle import ensure_bundle  # noqa: E402
from dflashctl.operations.launch import launch  # noqa: E402
from dflashctl.operations.stop import stop  # noqa: E402
from dflashctl.transport.machine import describe_machine  # noqa: E402
from dflashctl.transport.shell import Shell  # noqa: E402
from shells import Shells  # noqa: E402
from sshlab import Lab, means  # noqa: E402
from supervised_jobs import make_job  # noqa: E402
from training import ENDS_SOON, TRAINS, Site  # noqa: E402

LIST_RATIO, LIST_EXTRA_S, LAUNCH_S, SECOND_LAUNCH_S = 1.3, 0.3, 1.5, 1.0
"""A launch whose bundle is there is also a second launch, which has the narrower limit where no delay is added."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="added to the links of ct129 and of kpro6")
    parser.add_argument("--json", type=Path, help="write all times here")
    arguments = parser.parse_args()
    allowed = means()
    print(f"{describe_machine()}; {allowed}; {arguments.rounds} rounds, {arguments.rtt_ms:g} ms added")
    if allowed.mode == "none":
        return 2
    with Lab(allowed.mode) as lab, lab.in_operator(), ExitStack() as stack:
        site = Site(lab, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        if arguments.rtt_ms:
            for name in ("ct129", "kpro6"):
                stack.enter_context(lab.hosts[name].delay(arguments.rtt_ms / 1000))
        times = measure(lab, site, arguments.rounds)
    return report(times, arguments.json)


def measure(lab: Lab, site: Site, rounds: int) -> dict[str, list[float]]:
    """Seconds of every arm in every round; runs and connections that were left are told too."""
    for name in lab.hosts:
        for number in range(3):
            _checked(site.start(name, f"before-{number}", ENDS_SOON))
    times: dict[str, list[float]] = {}
    opened = Shells(site.operator)
    shells = {name: opened(name) for name in ("ct129", "kpro6")}
    for number in range(rounds + 1):
        for name in lab.hosts:
            _time(times, f"ssh {name} true", lambda name=name: site.operator.ssh(name, "true"))
        before = _logins(lab)
        _time(times, "train list, 3 hosts", lambda: site.operator.cli("train", "list", "--all"))
        # The jump host is asked for itself, and the way to kpro6 leads through it over the same connection.
        times.setdefault("connections of a list", []).append(_logins(lab) - before)
        for name in ("ct129", "kpro6"):
            run = f"bench-{number}"
            before = lab.hosts[name].read("/var/log/lab-sshd.log").count(b"Accepted publickey")
            _time(times, f"start on {name}", lambda name=name, run=run: site.start(name, run, TRAINS))
            after = lab.hosts[name].read("/var/log/lab-sshd.log").count(b"Accepted publickey")
            times.setdefault(f"connections of a start on {name}", []).append(after - before)
            _checked(site.stop(name, run))
            arm = f"second launch on {name}, connected"
            workdir = f"{lab.hosts[name].home(site.user)}/again"
            times.setdefault(arm, []).append(_ship_and_launch(shells[name], workdir, number))
        _time(times, "dflashctl --help", lambda: site.operator.cli("--help"))
    opened.close()
    # The first round warms what can be warm, and sends the bundle.
    return {arm: values[1:] for arm, values in times.items()}


def report(times: dict[str, list[float]], path: Path | None) -> int:
    for arm, values in times.items():
        unit = "" if arm.startswith("connections") else " s"
        print(f"{arm:32} median {statistics.median(values):.3f}{unit}  min {min(values):.3f}  max {max(values):.3f}")
    slowest = max((statistics.median(v), arm) for arm, v in times.items() if arm.startswith("ssh "))
    listed = statistics.median(times["train list, 3 hosts"])
    allowed_s = LIST_RATIO * slowest[0] + LIST_EXTRA_S
    launched = max(statistics.median(v) for arm, v in times.items() if arm.startswith("start on"))
    again = max(statistics.median(v) for arm, v in times.items() if arm.startswith("second launch"))
    claims = {
        f"train list: {listed:.3f} s, {listed / slowest[0]:.2f} x {slowest[1]}; allowed {allowed_s:.3f} s": listed
        <= allowed_s,
        f"confirmed launch: {launched:.3f} s; allowed {LAUNCH_S} s": launched <= LAUNCH_S,
        f"second launch, the whole command: {launched:.3f} s; allowed {SECOND_LAUNCH_S} s": launched <= SECOND_LAUNCH_S,
        f"second launch, once connected: {again:.3f} s; allowed {SECOND_LAUNCH_S} s": again <= SECOND_LAUNCH_S,
        "one connection a host and command": set(times["connections of a list"]) == {3}
        and {n for arm, v in times.items() if arm.startswith("connections of a start") for n in v} == {1},
    }
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'MISSED'}: {claim}")
    if path is not None:
        path.write_text(json.dumps(times, indent=1))
    return 0 if all(claims.values()) else 1


def _ship_and_launch(shell: Shell, workdir: str, number: int) -> float:
    """Seconds until a job is seen to live, by the operations that `train start` calls when the host is connected."""
    began_s = time.perf_counter()
    bundle = ensure_bundle(shell, workdir)
    name = f"again-{number}"
    job = make_job(workdir, "", name=name, supervisor=bundle.supervisor, argv=("/bin/sleep", "1000"))
    launch(shell, job)
    seconds = time.perf_counter() - began_s
    stop(shell, f"{workdir}/runs/{name}", who="bench_remote", grace_s=5.0)
    return seconds


def _time(times: dict[str, list[float]], arm: str, act) -> None:
    began_s = time.perf_counter()
    done = act()
    times.setdefault(arm, []).append(time.perf_counter() - began_s)
    _checked(done)


def _checked(done) -> None:
    if done.code != 0:
        raise subprocess.SubprocessError(f"exit code {done.code}: {done.err}")


def _logins(lab: Lab) -> int:
    return sum(host.read("/var/log/lab-sshd.log").count(b"Accepted publickey") for host in lab.hosts.values())


if __name__ == "__main__":
    sys.exit(main())
