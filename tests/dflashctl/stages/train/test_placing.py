import pytest

from dflashctl.errors import ConfigError
from dflashctl.stages.train.placing import Placing, idle_gpus, place, refuse_several_hosts, refuse_too_few
from dflashctl_remote.spec.placement import PlacementSpec
from dflashctl_remote.spec.train import OptimSpec, TrainSpec


def placed(placement, *, num_gpus=None, accumulation=8) -> Placing:
    spec = TrainSpec(
        target="/t", dataset="/d", num_steps=1, optim=OptimSpec(accumulation=accumulation), placement=placement
    )
    return place(spec, num_gpus=num_gpus, num_drafter_parameters=1000, num_taps=5, width=5120, is_bf16=True)


def test_stages_are_on_the_gpus_that_the_trainer_will_take():
    made = placed(PlacementSpec(layout="2+1"), num_gpus=2)
    assert (made.target_gpus, made.drafter_gpus) == ((0, 0), (1,))
    assert placed(PlacementSpec(layout="2+1")).target_gpus == ()
    assert placed(PlacementSpec(layout="2+1"), num_gpus=0).target_gpus == ()


def test_a_step_is_shared_by_all_processes_or_drafters():
    assert placed(PlacementSpec(ranks=2, nodes=2)).batches_per_share == 2
    assert placed(PlacementSpec(layout="2+4")).batches_per_share == 2


def test_memory_of_the_drafter_and_of_what_is_on_its_way_by_hand():
    made = placed(PlacementSpec(layout="3+1", states_ahead=2))
    assert made.estimated_drafter_bytes == 16_000
    assert made.estimated_states_bytes == (2 + 3 + 1) * 8192 * 5 * 5120 * 2


@pytest.mark.parametrize(
    ("fields", "num_given"), [({"ranks": 2}, 2), ({"layout": "3+1"}, 1), ({"layout": "3+1"}, 2), ({"ranks": 1}, 4)]
)
def test_gpus_that_suffice_are_taken(fields, num_given):
    refuse_too_few(PlacementSpec(**fields), num_given)


@pytest.mark.parametrize(
    ("fields", "num_given", "said"),
    [
        ({"ranks": 4}, 2, "2 of the GPUs that 4 ranks need"),
        ({"layout": "2+2"}, 2, r"layout 2\+2 leaves no GPU of 2 to its targets, given with --gpu"),
    ],
)
def test_fewer_gpus_than_the_trainer_needs_are_refused_before_it_starts(fields, num_given, said):
    with pytest.raises(ConfigError, match=said):
        refuse_too_few(PlacementSpec(**fields), num_given)


def test_gpus_that_would_lie_idle_are_told():
    assert idle_gpus(PlacementSpec(), ("a",)) == ()
    assert idle_gpus(PlacementSpec(), ("a", "b")) == ("1 GPU is leased and idle: ranks 1 uses 1 of 2",)
    assert "2 GPUs are leased and idle: layout 3+1" in idle_gpus(PlacementSpec(layout="3+1"), tuple("abcdef"))[0]


def test_a_run_on_several_hosts_is_told_how_it_is_started():
    refuse_several_hosts(PlacementSpec(ranks=8))
    with pytest.raises(ConfigError, match="started by torchrun on each of them") as caught:
        refuse_several_hosts(PlacementSpec(ranks=8, nodes=2))
    assert "docs/scaling.md" in caught.value.hint
