"""Which device each stage of a run is on."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.spec.placement import COLOCATED, devices_of
from dflashctl_remote.spec.train import TrainSpec
from dflashctl_remote.target.load import Target, resolve_device
from dflashctl_remote.trainer.ranks import Ranks


class CopiedEnds:
    """A target's embedding and head on the device of a drafter that lives elsewhere. `load_target` has refused
    whatever more an embedding might do."""

    def __init__(self, target: Target, device: torch.device) -> None:
        self.head_VE: Tensor = target.head_VE.to(device)
        embedding: Tensor = target.model.get_input_embeddings().weight.detach()
        is_tied = embedding.data_ptr() == target.head_VE.data_ptr()
        self._embedding_VE = self.head_VE if is_tied else embedding.to(device)

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embedding_VE)


@dataclass(frozen=True)
class StageDevices:
    targets: tuple[torch.device, ...]
    drafters: tuple[torch.device, ...]


def stage_devices(spec: TrainSpec, ranks: Ranks) -> StageDevices:
    """Raises BadInput if there are too few GPUs for the placement."""
    device, placement = resolve_device(spec.device), spec.placement
    if device.type != "cuda":
        return StageDevices((device,) * placement.num_targets, (device,) * placement.num_drafters)
    if placement.layout == COLOCATED:
        here = torch.device("cuda", torch.cuda.current_device())
        return StageDevices((here,), (here,))
    try:
        targets, drafters = devices_of(placement, torch.cuda.device_count())
    except ValueError as error:
        raise BadInput(str(error), hint="give the run more GPUs, or another placement.layout") from error
    return StageDevices(
        tuple(torch.device("cuda", n) for n in targets), tuple(torch.device("cuda", n) for n in drafters)
    )
