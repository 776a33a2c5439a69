"""What the lab's tests of `train` share: hosts that are ready for a run whose job is stand_in/train.py."""

import json
import sys
from pathlib import Path

from dflashctl.operations.environment_plan import NEEDED_MODULES
from dflashctl_remote.spec.data import DatasetInfo
from dflashctl_remote.spec.manifest import Manifest
from sshlab import Lab
from sshlab.operator_side import Operator

STAND_IN = Path(__file__).parent / "stand_in" / "train.py"
TRAINS, ENDS, DIES, IS_STUBBORN, ENDS_SOON = range(5)
SIZE = {"num_hidden_layers": 8, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}


class Site:
    """One operator, and the three hosts with a target, a dataset, and an interpreter that runs the stand-in."""

    def __init__(self, lab: Lab, folder: Path, *, workdir: str = "", user: str | None = None, **changes) -> None:
        """`workdir`: below the tests' own; `user`: other than the hosts' usual one."""
        python = {"python": f"~/{folder.name}-python/bin/python"}
        hosts = {name: {**python, **changes.pop(name, {})} for name in lab.hosts}
        self.lab = lab
        if user is not None:
            hosts = {name: {**spec, "user": user} for name, spec in hosts.items()}
        self.operator: Operator = lab.operator(folder, **hosts, **changes)
        self.folder_name = folder.name + (f"/{workdir}" if workdir else "")
        self.user = user
        info = DatasetInfo(
            num_documents=1, num_tokens=1000, num_supervised_tokens=500, num_skipped_rows=0, num_truncated=0,
            max_document_tokens=10, max_length_tokens=512, target="t", tokenizer_sha256="a", template_sha256="b",
            input_sha256="c",
        )  # fmt: skip
        manifest = Manifest(
            kind="dataset", created_at_s=1.0, bundle_sha="b", files=(), about=info.model_dump(mode="json")
        )
        for host in lab.hosts.values():
            home = host.home(user)
            host.write(f"{home}/target/config.json", json.dumps(SIZE))
            host.write(f"{home}/dataset/manifest.json", manifest.model_dump_json(indent=2))
            self._make_interpreter(host, f"{home}/{folder.name}-python")

    @staticmethod
    def _make_interpreter(host, folder: str) -> None:
        """One that runs the stand-in for the training job's module, and seems to have what that needs."""
        base = str(Path(sys.base_prefix) / "bin/python3")
        host.exec([base, "-m", "venv", "--without-pip", folder])
        packages = f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        host.exec(["mkdir", *(f"{packages}/{name}" for name in NEEDED_MODULES)])
        host.write(
            f"{packages}/sitecustomize.py",
            "import os, sys\n"
            "if sys.orig_argv[1:3] == ['-m', 'dflashctl_remote.entry.train']:\n"
            "    sys.argv[:], code = sys.orig_argv[2:], 0\n"
            "    try:\n"
            f"        exec({STAND_IN.read_text()!r})\n"
            "    except SystemExit as end:\n"
            "        code = end.code\n"
            "    sys.stdout.flush()\n"
            "    sys.stderr.flush()\n"
            "    os._exit(code)\n",
        )

    def start(self, host: str, run: str, behaviour: int, *more: str, steps: int = 100_000, env=None, timeout_s=60.0):
        """`train start --detach`."""
        return self.operator.cli(
            *self.start_args(host, run, behaviour, *more, steps=steps), env=env, timeout_s=timeout_s
        )

    @staticmethod
    def start_args(host: str, run: str, behaviour: int, *more: str, steps: int = 100_000) -> list[str]:
        words = ["train", "start", "--host", host, "--run-id", run, "--detach", "--target", "~/target"]
        sets = ["--set", f"train.seed={behaviour}", "--set", "train.drafter.num_taps=2", "--set", "train.device=cpu"]
        return [*words, "--dataset", "~/dataset", "--steps", str(steps), *sets, *more]

    def stop(self, host: str, run: str, *more: str):
        return self.operator.cli("train", "stop", run, "--host", host, *more)

    def states(self, host: str) -> dict[str, str]:
        done = self.operator.cli("train", "list", "--host", host, "--json")
        return {state["run"]["run_id"]: state["state"] for state in json.loads(done.out)}

    def folder(self, host: str, run: str) -> str:
        return f"{self.lab.hosts[host].home(self.user)}/{self.folder_name}/runs/{run}"

    def processes(self, host: str, run: str):
        """Ground truth: what of the host's processes has the run's folder in its argv or its environment."""
        needle = self.folder(host, run)
        return [
            process
            for process in self.lab.hosts[host].processes()
            if process.state not in "ZX" and any(needle in word for word in (*process.argv, *process.environ.values()))
        ]
