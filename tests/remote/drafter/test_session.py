from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflashctl_remote.data.pack import PackedRow
from dflashctl_remote.drafter.anchors import Anchors
from dflashctl_remote.drafter.objective import block_states, row_layout
from dflashctl_remote.drafter.session import DraftSession
from dflashctl_remote.spec.drafter import DrafterConfig


@pytest.mark.parametrize("kind", ["full", "mixed"])
def test_a_session_drafts_what_training_scores(
    kind: str,
    make_config: Callable[..., DrafterConfig],
    mixed_config: DrafterConfig,
    make_row: Callable[..., PackedRow],
    make_drafter: Any,
    make_states: Any,
    ends: Any,
) -> None:
    """The same weights, context and anchor give the same drafts by the trainer's path and by the served path."""
    config = mixed_config if kind == "mixed" else make_config()
    row, drafter = make_row((19, 22), total=44), make_drafter(config)
    states = make_states(row, config)
    at = torch.tensor([7, 30]).numpy()
    anchors = Anchors(at, row.positions_T[at], row.document_ids_T[at], 2)
    layout = row_layout(row, anchors, config.block_size, device=torch.device("cpu"))
    with torch.no_grad():
        hidden = block_states(drafter, ends, row, states.taps_TF, layout, attention="eager")
    trained = (hidden @ ends.head_VE.T).argmax(-1).view(2, config.block_size)[:, 1:]

    session = DraftSession(drafter, ends)
    session.extend(states.taps_TF[:3])
    session.extend(states.taps_TF[3:7])
    assert session.propose(int(row.input_ids_T[7])) == trained[0].tolist()
    session.reset()
    session.extend(states.taps_TF[19:30])
    assert session.propose(int(row.input_ids_T[30])) == trained[1].tolist()


def test_proposing_does_not_change_the_context(make_config: Any, make_drafter: Any, ends: Any) -> None:
    config = make_config()
    session = DraftSession(make_drafter(config), ends)
    session.extend(torch.randn(9, 2 * config.hidden_size, generator=torch.Generator().manual_seed(0)))
    first = session.propose(5)
    assert session.propose(5) == first
    assert session.num_context == 9


def test_a_shortened_block_gives_fewer_drafts(make_config: Any, make_drafter: Any, ends: Any) -> None:
    config = make_config()
    session = DraftSession(make_drafter(config), ends)
    session.extend(torch.randn(4, 2 * config.hidden_size, generator=torch.Generator().manual_seed(0)))
    assert len(session.propose(5, block_size=3)) == 2


def test_the_drafts_are_the_arg_max_of_the_logits(make_config: Any, make_drafter: Any, ends: Any) -> None:
    config = make_config()
    session = DraftSession(make_drafter(config), ends)
    session.extend(torch.randn(7, 2 * config.hidden_size, generator=torch.Generator().manual_seed(0)))
    logits = session.propose_logits(5, 3)
    assert logits.shape == (2, len(ends.head_VE))
    assert logits.argmax(dim=-1).tolist() == session.propose(5, 3)
