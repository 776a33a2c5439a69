import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflashctl.artifacts import Workdir
from dflashctl.config.servers import ServerSpec
from dflashctl.stages.deploy.apply import bring_down, bring_up
from dflashctl.stages.deploy.plan import plan_deploy
from dflashctl_remote.spec.drafter import DrafterSpec, TargetShape, resolve_drafter
from dflashctl_remote.spec.manifest import write_manifest

STAND_IN = Path(__file__).parent / "stand_in.py"
SHAPE = TargetShape(
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    vocab_size=100,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=512,
    mask_token_id=3,
    bos_token_id=None,
    eos_token_ids=(1,),
    pad_token_id=0,
)


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    names = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(names))
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """A drafter's folder; what is given changes its config.json."""

    def make(**changes) -> Path:
        folder = tmp_path / "drafter"
        folder.mkdir(exist_ok=True)
        spec = DrafterSpec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, block_size=8, tap_layers=(0, 2))
        raw = resolve_drafter(spec, SHAPE).to_zlab("float32")
        raw.update({name: value for name, value in changes.items() if name != "target_layer_ids"})
        raw["dflash_config"].update({name: changes[name] for name in raw["dflash_config"] if name in changes})
        (folder / "config.json").write_text(json.dumps(raw))
        (folder / "model.safetensors").write_bytes(b"weights")
        write_manifest(folder, "checkpoint", bundle_sha="0" * 12, about={})
        return folder

    return make


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path / "work")


@pytest.fixture
def plan(target, checkpoint, workdir):
    """A plan whose process is the stand-in, which behaves as `how` says."""

    def make(how: str = "good", **changes):
        fields = {"name": how, "target": str(target), "drafter": str(checkpoint()), "port": 0}
        spec = ServerSpec(**{**fields, **changes})
        made = plan_deploy(spec, workdir, python=sys.executable, bundle_root=Path("/bundle"))
        argv = (sys.executable, str(STAND_IN), *made.launch.argv[3:])
        content = json.loads(made.launch.files[0][1]) | {"served_name": how}
        files = ((made.launch.files[0][0], json.dumps(content)),)
        return replace(made, launch=replace(made.launch, argv=argv, files=files, needs_modules=()))

    return make


@pytest.fixture
def up(workdir, transport):
    """Brings servers up, and down again at the end."""
    started = []

    def bring(made, said=None, *, bundle_sha="0" * 12, timeout_s=None):
        started.append(made.server)
        say = (said if said is not None else []).append
        return bring_up(made, workdir, transport, bundle_sha=bundle_sha, say=say, timeout_s=timeout_s)

    yield bring
    for server in started:
        if server.record_path.is_file():
            bring_down(server, transport, say=lambda text: None)
