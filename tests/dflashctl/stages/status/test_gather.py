from dflashctl.artifacts import Workdir
from dflashctl.stages.status.gather import gather
from dflashctl.stages.status.training import NUM_PIECES, PIECE_BYTES

NOW_S = 2_000_000.0


def test_every_fact_names_its_source(run, evaluated, benchmarked, dataset, workdir, transport):
    evaluated(run([3.0] * 50, checkpoint_steps=(50,)), 50)
    benchmarked()
    dataset(workdir.path / "data")
    snapshot = gather(workdir, transport, NOW_S)
    assert [subject.sort for subject in snapshot.subjects] == ["run", "benchmark", "dataset", "dataset"]
    everything = [fact for subject in snapshot.subjects for fact in (subject.state, *subject.facts)]
    assert len(everything) > 15
    assert all(fact.source for fact in everything)
    assert all(fact.at_s is not None for fact in everything if fact.kind == "measured")


def test_what_cannot_be_read_is_named_and_hides_nothing(run, evaluated, benchmarked, workdir, transport):
    folder = evaluated(run([2.0] * 5, checkpoint_steps=(5,)), 5)
    (folder / "report.json").write_text("{}")
    benchmarked().write_text("half a")
    run([2.0], run_id="broken").events_path.write_text("garbage\n")
    server = workdir.path / "servers" / "odd" / "server.json"
    server.parent.mkdir(parents=True)
    server.write_text("{}")
    snapshot = gather(workdir, transport, NOW_S)
    assert [problem.name for problem in snapshot.problems] == ["evaluation e", "benchmark s-1"]
    states = {subject.name: subject.state for subject in snapshot.subjects}
    assert states["broken"].value == states["odd"].value == "unreadable"
    assert "garbage" in states["broken"].warning
    assert states["r"].value == "finished"


def test_an_unfinished_evaluation_is_no_problem(run, evaluated, workdir, transport):
    folder = evaluated(run([2.0] * 5, checkpoint_steps=(5,)), 5)
    (folder / "manifest.json").unlink()
    assert gather(workdir, transport, NOW_S).problems == ()


def test_an_empty_folder_has_nothing(tmp_path, transport):
    snapshot = gather(Workdir(tmp_path), transport, NOW_S)
    assert (snapshot.subjects, snapshot.problems) == ((), ())


def test_a_folder_that_is_not_there_does_not_pass_for_an_empty_one(workdir, transport):
    (problem,) = gather(workdir, transport, NOW_S).problems
    assert problem.text == f"not known: there is no folder {workdir.path}"


def test_long_accounts_are_not_read_whole(run, workdir, transport):
    ref = run([2.0] * 3000, is_finished=False)
    whole = ref.events_path.read_bytes()
    # Between two pieces, and long before the end: a line that no reader could parse.
    at = whole.index(b"\n", PIECE_BYTES + 1024) + 1
    assert PIECE_BYTES < at < (len(whole) - PIECE_BYTES) // (NUM_PIECES - 1)
    ref.events_path.write_bytes(whole[:at] + b"garbage\n" + whole[at:])
    (subject, _) = gather(workdir, transport, NOW_S).subjects
    assert {fact.name for fact in subject.facts} > {"step", "loss"}
    assert all("garbage" not in fact.warning for fact in subject.facts)


def test_a_line_in_mid_account_that_cannot_be_read_costs_only_what_it_tells(run, workdir, transport):
    ref = run([2.0] * 3000)
    ref.events_path.write_bytes(b"garbage\n" + ref.events_path.read_bytes())
    (subject, _) = gather(workdir, transport, NOW_S).subjects
    assert subject.state.value == "finished"
    facts = {fact.name: fact for fact in subject.facts}
    assert "garbage" in facts["account"].warning
    assert facts["tau"].kind == "unknown"


def test_a_record_that_is_no_file_is_named(run, workdir, transport):
    path = run([2.0]).record_path
    path.unlink()
    path.mkdir()
    (subject,) = gather(workdir, transport, NOW_S).subjects
    assert "Is a directory" in {fact.name: fact for fact in subject.facts}["recipe"].warning
