import pytest

from dflashctl.artifacts import CheckpointRef, DatasetRef, Workdir, best_of
from dflashctl.errors import ArtifactError, ConfigError
from dflashctl_remote.spec.manifest import write_manifest


@pytest.fixture
def work(tmp_path):
    run = tmp_path / "runs" / "mine"
    for step, is_complete in ((0, True), (100, True), (1000, True), (1200, False)):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        if is_complete:
            (folder / "manifest.json").write_text("{}")
    (run / "run.json").write_text("{}")
    return Workdir(tmp_path)


@pytest.mark.parametrize(("name", "step"), [("mine", 1000), ("mine@latest", 1000), ("mine@100", 100), ("mine@0", 0)])
def test_checkpoint_is_found_by_run_and_step(work, name, step):
    ref = work.checkpoint(name)
    assert (ref.step, ref.label) == (step, f"mine@{step}")


def about(work, step, **figures):
    write_manifest(
        work.path / f"runs/mine/checkpoints/step-{step:08d}",
        "checkpoint",
        bundle_sha="b",
        about={"step": step, **figures},
    )


def test_the_best_is_that_of_the_highest_measured_tau_whatever_its_loss(work):
    about(work, 0)
    about(work, 100, tau=3.5, loss=2.0)
    about(work, 1000, tau=3.25, loss=1.0)
    ref = work.checkpoint("mine@best")
    assert (ref.step, ref.why) == (100, "the best of 2 with a measured tau (3.50)")


def test_without_a_measured_tau_the_best_is_that_of_the_lowest_loss_and_says_so(work):
    about(work, 0)
    about(work, 100, loss=2.0)
    about(work, 1000, loss=1.0)
    ref = work.checkpoint("mine@best")
    assert (ref.step, ref.why) == (1000, "the lowest training loss (1.000), since no tau was measured")


def test_where_no_figure_is_there_none_is_best(work):
    for step in (0, 100, 1000):
        about(work, step)
    with pytest.raises(ArtifactError, match="none is best"):
        work.checkpoint("mine@best")


@pytest.mark.parametrize(
    ("abouts", "index"),
    [
        ([{"tau": 3.0}, {"tau": 3.0}, {"tau": 2.0}], 1),
        ([{"loss": 1.0}, {"loss": 1.0}, {"loss": 2.0}], 1),
        ([{"tau": 1.1, "loss": 9.0}, {"loss": 1.0}], 0),
        ([{"loss": 1.0}, {"loss": float("nan")}], 0),
        ([{"loss": None}, {"loss": "1"}], None),
    ],
)
def test_of_equals_the_newest_is_best_and_what_is_no_number_is_none(abouts, index):
    best = best_of(abouts)
    assert (best.index if best else None) == index


def test_checkpoint_without_manifest_does_not_count(work):
    with pytest.raises(ConfigError, match="complete are 0, 100, 1000"):
        work.checkpoint("mine@1200")


def test_checkpoint_may_be_a_folder(work, tmp_path):
    assert work.checkpoint(str(tmp_path)).folder == tmp_path


def test_run_without_a_complete_checkpoint_says_so(tmp_path):
    (tmp_path / "runs" / "new").mkdir(parents=True)
    (tmp_path / "runs" / "new" / "run.json").write_text("{}")
    with pytest.raises(ArtifactError, match="no complete checkpoint yet"):
        Workdir(tmp_path).checkpoint("new")


def test_unknown_run_names_those_that_are_there(work):
    with pytest.raises(ConfigError, match=r"\(there: mine\)"):
        work.run("yours")


def test_command_for_a_run_names_the_work_folder_unless_it_is_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual, other = (Workdir(tmp_path / name).new_run("r") for name in ("dflashctl-work", "my work"))
    assert usual.command("resume") == "dflashctl train resume r"
    assert other.command("resume") == "dflashctl train resume r --workdir 'my work'"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x"])
def test_name_that_leaves_the_folder_is_refused(work, name):
    with pytest.raises(ConfigError, match="cannot be a run's name"):
        work.new_run(name)


def test_folder_without_manifest_is_incomplete(tmp_path):
    for read in (CheckpointRef(tmp_path, None, None).manifest, DatasetRef(tmp_path).info):
        with pytest.raises(ArtifactError, match="never finished"):
            read()


def test_digits_that_are_not_plain_ones_name_no_step(work):
    with pytest.raises(ConfigError, match="has no checkpoint"):
        work.checkpoint("mine@\u00b2")
    (work.path / "runs" / "mine" / "checkpoints" / "step-\u00b2").mkdir()
    assert work.checkpoint("mine").step == 1000


def test_dataset_whose_manifest_says_other_things_is_refused(tmp_path):
    write_manifest(tmp_path, "dataset", bundle_sha="b", about={"num_documents": "many"})
    with pytest.raises(ArtifactError, match="not a dataset's of this version: num_documents"):
        DatasetRef(tmp_path).info()
