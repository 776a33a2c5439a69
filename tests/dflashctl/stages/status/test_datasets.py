from dflashctl.stages.status.datasets import dataset_subjects

NOW_S = 2_000_000.0


def test_a_dataset_tells_what_its_manifest_says(workdir, dataset):
    dataset(workdir.path / "data", num_skipped_rows=3)
    (found,) = dataset_subjects(workdir)
    assert (found.name, found.state.value, found.state.age_s(NOW_S)) == ("data", "complete", 900.0)
    assert [fact.text for fact in found.facts] == [
        "300 documents, 36,738 tokens",
        "49.9 % of the tokens",
        "3 bad rows",
    ]


def test_what_a_run_names_is_shown_wherever_it_lies(workdir, tmp_path, run, dataset):
    dataset(tmp_path / "data")
    run([2.0])
    (found,) = dataset_subjects(workdir)
    assert (found.name, found.state.value) == (str(tmp_path / "data"), "complete")


def test_a_dataset_that_a_run_names_and_that_is_gone_says_so(workdir, run):
    run([2.0])
    (found,) = dataset_subjects(workdir)
    assert found.state.value == "unreadable"
    assert "no such folder" in found.state.warning


def test_a_manifest_of_another_kind_is_no_dataset(workdir, dataset):
    folder = dataset(workdir.path / "checkpoint")
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"kind":"dataset"', '"kind":"checkpoint"'))
    assert dataset_subjects(workdir) == ()


def test_a_manifest_of_another_version_names_what_is_wrong(workdir, dataset):
    dataset(workdir.path / "data", num_documents="many")
    (found,) = dataset_subjects(workdir)
    assert "num_documents" in found.state.warning
