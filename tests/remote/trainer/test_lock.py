import pytest

from dflashctl_remote.spec.errors import BadInput
from dflashctl_remote.trainer.lock import sole_trainer


def test_two_trainers_of_one_run_are_refused(tmp_path):
    with sole_trainer(tmp_path), pytest.raises(BadInput, match="another process is training"), sole_trainer(tmp_path):
        pass


def test_a_run_can_be_trained_again_once_the_first_is_done(tmp_path):
    with sole_trainer(tmp_path):
        pass
    with sole_trainer(tmp_path):
        pass
