import json

import pytest

from dflashctl.errors import ArtifactError, ConfigError
from dflashctl.operations.relay.tree import Place, SourceFile, Tensor, Tree
from dflashctl.stages.relay.checkpoint import Checkpoint, CheckpointJob, Found, choose, find, parse_name

SHA = {letter: letter * 64 for letter in "abcdef"}


def manifest(files, **about):
    entries = [{"path": path, "size_bytes": 10, "sha256": sha} for path, sha in files.items()]
    told = {"kind": "checkpoint", "created_at_s": 1.0, "bundle_sha": "0" * 12, "files": entries, "about": about}
    return json.dumps(told)


class FakeAgent:
    """Answers as a host would that holds these checkpoints of run r: {step: (manifest, {file: {tensor: content}})}."""

    def __init__(self, folder, steps):
        self.folder, self.steps = folder, steps
        self.asked = []

    def place(self, step):
        return f"{self.folder}/runs/r/checkpoints/step-{step:08d}"

    def ask(self, op, payload, *, timeout_s=0.0):
        self.asked.append((op, payload))
        return getattr(self, op)(payload)

    def find(self, payload):
        run = payload["run"] or ("r" if self.steps else None)
        steps = [[step, self.place(step), text] for step, (text, _) in sorted(self.steps.items())] if run == "r" else []
        told = {
            "workdir": self.folder,
            "runs": [["r", 1.0]] if self.steps else [],
            "run": run,
            "steps": steps,
            "unfinished": [],
        }
        return {**told, "exists": run == "r" and bool(self.steps)}

    def look(self, payload):
        for step, (text, _) in self.steps.items():
            if payload["dest"] == self.place(step):
                return {"dest": payload["dest"], "kind": "folder", "manifest": text}
        return {"dest": payload["dest"], "kind": "nothing", "manifest": None}

    def tensors(self, payload):
        folder, _, name = payload["path"].rpartition("/")
        for step, (_, files) in self.steps.items():
            if folder == self.place(step):
                held = files.get(name, {})
                wanted = payload["names"] or list(held)
                return {
                    tensor: [self.digest(content, payload["sample_bytes"]), 100 * number, 50, "BF16"]
                    for number, (tensor, content) in enumerate(held.items())
                    if tensor in wanted
                }
        return {}

    @staticmethod
    def digest(content, sample_bytes):
        """The first half of a content is its sample."""
        return content if sample_bytes is None else content[: len(content) // 2]


def job_of(source, target, which="latest", **changes):
    job = CheckpointJob("a", "b", source.folder, target.folder, "r", which, **changes)
    return job, job.choose(source, target)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (None, (None, "latest")),
        ("r", ("r", "latest")),
        ("r@7", ("r", "7")),
        ("r@best", ("r", "best")),
        ("@latest", (None, "latest")),
        ("@12", (None, "12")),
    ],
)
def test_names_of_checkpoints(name, parts):
    assert parse_name(name) == parts


@pytest.mark.parametrize("name", ["r@", "r@@7", "r@worst", "@", "r@-1", "r@7 "])
def test_what_names_no_checkpoint(name):
    with pytest.raises(ConfigError, match="names no checkpoint"):
        parse_name(name)


def found(*checkpoints, run="r", is_there=True):
    return Found("/w", ("r",), run, is_there, tuple(checkpoints))


def made(step, loss=None, **about):
    about |= {} if loss is None else {"loss": loss}
    agent = FakeAgent("/w", {step: (manifest({"m": SHA["a"]}, **about), {})})
    return find(agent, "/w", "r").checkpoints[0]


def test_the_newest_complete_one_is_chosen():
    unreadable = Checkpoint("r", 9, "/w/9", None)
    assert choose(found(made(1), made(5), unreadable), "latest", "a").step == 5


def test_the_best_is_that_of_the_lowest_loss_and_the_newest_of_equals():
    assert choose(found(made(1, 2.0), made(2, 1.0), made(3, 1.0), made(4, 3.0)), "best", "a").step == 3


def test_the_best_is_that_of_the_highest_tau_where_any_was_measured_and_says_so():
    chosen = choose(found(made(1, 1.0), made(2, 3.0, tau=3.5), made(3, 2.0, tau=3.25)), "best", "a")
    assert (chosen.step, chosen.why) == (2, "the best of 2 with a measured tau (3.50)")


def test_by_loss_it_says_that_nothing_was_measured():
    assert "no tau was measured" in choose(found(made(1, 2.0), made(2, 1.0)), "best", "a").why


def test_a_loss_that_is_no_number_is_none():
    assert choose(found(made(1, 2.0), made(2, float("nan"))), "best", "a").step == 1


def test_none_is_best_where_no_loss_was_told():
    with pytest.raises(ArtifactError, match="none is best"):
        choose(found(made(1), made(2)), "best", "a")


@pytest.mark.parametrize(
    ("state", "which", "error", "said"),
    [
        (found(run=None), "latest", ArtifactError, "no run in /w on a has a complete checkpoint"),
        (found(is_there=False), "latest", ConfigError, r"no run r in /w on a \(with checkpoints: r\)"),
        (found(Checkpoint("r", 9, "/w/9", None)), "latest", ArtifactError, "run r on a has no complete checkpoint"),
        (found(made(1), made(5)), "7", ConfigError, "no checkpoint 7: complete are 1, 5"),
    ],
)
def test_what_cannot_be_chosen_is_said(state, which, error, said):
    with pytest.raises(error, match=said):
        choose(state, which, "a")


def test_a_manifest_that_cannot_be_read_is_no_checkpoints():
    agent = FakeAgent("/w", {1: ("{", {}), 2: (None, {})})
    assert [one.manifest for one in find(agent, "/w", "r").checkpoints] == [None, None]


def test_one_that_is_there_with_all_that_would_be_sent_is_not_sent():
    files = {"m": SHA["a"], "state/o": SHA["b"]}
    source = FakeAgent("/a", {1: (manifest(files), {})})
    target = FakeAgent("/b", {1: (manifest({"m": SHA["a"]}), {})})
    job, wanted = job_of(source, target)
    assert (wanted, job.is_there, job.dest) == (None, True, "/b/runs/r/checkpoints/step-00000001")
    assert job_of(source, target, with_state=True)[1] is not None
    assert job_of(source, FakeAgent("/b", {1: (manifest({"m": SHA["c"]}), {})}))[1] is not None


def test_what_was_chosen_stays_chosen_and_is_told_once():
    told = []
    source, target = FakeAgent("/a", {1: (manifest({"m": SHA["a"]}), {})}), FakeAgent("/b", {})
    job, _ = job_of(source, target, on_chosen=told.append)
    source.steps[2] = (manifest({"m": SHA["b"]}), {})
    wanted = job.choose(source, target)
    assert (wanted.source, [one.label for one in told]) == (source.place(1), ["r@1"])


def test_one_that_was_pruned_meanwhile_is_said_to_be():
    source, target = FakeAgent("/a", {1: (manifest({"m": SHA["a"]}), {})}), FakeAgent("/b", {})
    job, _ = job_of(source, target)
    source.steps = {2: (manifest({"m": SHA["b"]}), {})}
    with pytest.raises(ArtifactError, match="r@1 is gone from a: it was pruned"):
        job.choose(source, target)


NEW = {"frozen": "same-same", "changed": "new1-new1", "begins alike": "like-new2"}
OLD = {"frozen": "same-same", "changed": "old1-old1", "begins alike": "like-old2"}


def known_of(source, target):
    """What the target is found to know of checkpoint 2's file m."""
    job, _ = job_of(source, target, "2")
    tensors = tuple(Tensor(2, 1000 + 100 * n, 50, name, "BF16") for n, name in enumerate(NEW))
    tree = Tree(source.place(2), False, (SourceFile("m", 5000, 1, 1, 0o644, tensors),), manifest=source.steps[2][0])
    return job.prepare(source, target, tree)[1]


def one(sha, tensors):
    return manifest({"m": sha}), {"m": tensors}


def test_a_tensor_that_the_target_has_is_copied_and_one_that_changed_is_a_difference():
    source = FakeAgent("/a", {1: one(SHA["a"], OLD), 2: one(SHA["b"], NEW)})
    target = FakeAgent("/b", {1: one(SHA["a"], OLD)})
    known = known_of(source, target)
    assert dict(known.same) == {("m", "frozen"): Place("", 0, f"{target.place(1)}/m", 0)}
    assert known.base["m", "changed"] == Place(f"{source.place(1)}/m", 100, f"{target.place(1)}/m", 100)
    assert ("m", "begins alike") in known.base


def test_without_the_earlier_one_at_the_source_there_is_no_difference_but_a_copy():
    source, target = FakeAgent("/a", {2: one(SHA["b"], NEW)}), FakeAgent("/b", {1: one(SHA["a"], OLD)})
    known = known_of(source, target)
    assert (set(known.same), dict(known.base)) == ({("m", "frozen")}, {})


def test_earlier_ones_that_are_not_the_same_at_both_ends_make_no_difference():
    source = FakeAgent("/a", {1: one(SHA["a"], OLD), 2: one(SHA["b"], NEW)})
    target = FakeAgent("/b", {1: one(SHA["c"], OLD)})
    assert dict(known_of(source, target).base) == {}


def test_a_target_that_has_nothing_earlier_is_asked_nothing():
    source, target = FakeAgent("/a", {2: one(SHA["b"], NEW)}), FakeAgent("/b", {})
    known = known_of(source, target)
    assert (dict(known.same), dict(known.base)) == ({}, {})
    assert "tensors" not in [op for op, _ in (*source.asked, *target.asked)]


def test_the_whole_of_a_tensor_is_read_only_where_its_beginning_is_alike():
    source = FakeAgent("/a", {1: one(SHA["a"], OLD), 2: one(SHA["b"], NEW)})
    target = FakeAgent("/b", {1: one(SHA["a"], OLD)})
    known_of(source, target)
    whole = [asked["names"] for op, asked in source.asked if op == "tensors" and asked["sample_bytes"] is None]
    assert whole == [["frozen", "begins alike"]]


def test_the_nearest_of_earlier_ones_is_the_base():
    source = FakeAgent("/a", {0: one(SHA["c"], OLD), 1: one(SHA["a"], OLD), 2: one(SHA["b"], NEW)})
    target = FakeAgent("/b", {0: one(SHA["c"], OLD), 1: one(SHA["a"], OLD)})
    assert known_of(source, target).base["m", "changed"].target_path == f"{target.place(1)}/m"


def test_each_file_has_a_base_of_its_own():
    old, new = ({"m": OLD, "n": OLD}, {"m": NEW, "n": NEW})
    texts = [manifest({"m": SHA[one], "n": SHA[one]}) for one in ("a", "b")]
    source = FakeAgent("/a", {1: (texts[0], old), 2: (texts[1], new)})
    target = FakeAgent("/b", {1: (texts[0], old)})
    job, _ = job_of(source, target, "2")
    files = tuple(SourceFile(path, 5000, 1, 1, 0o644, (Tensor(2, 1000, 50, "changed", "BF16"),)) for path in ("m", "n"))
    tree = Tree(source.place(2), False, files, manifest=texts[1])
    assert {("m", "changed"), ("n", "changed")} <= set(job.prepare(source, target, tree)[1].base)


def test_the_manifest_of_what_is_sent_tells_what_was_left_behind():
    text = manifest({"m": SHA["a"], "state/o": SHA["b"]}, step=1)
    source, target = FakeAgent("/a", {1: (text, {})}), FakeAgent("/b", {})
    job, _ = job_of(source, target)
    tree = Tree(source.place(1), False, (SourceFile("m", 10, 1, 1, 0o644),), manifest=text)
    sent, _, sha256s = job.prepare(source, target, tree)
    told = json.loads(sent.manifest)
    assert ([entry["path"] for entry in told["files"]], sha256s) == (["m"], {"m": SHA["a"]})
    assert told["about"] == {"step": 1, "left_behind": ["state/o"]}


def test_a_manifest_of_which_all_is_sent_stays_as_it_is_to_the_letter():
    text = manifest({"m": SHA["a"]}) + "  \n"
    source, target = FakeAgent("/a", {1: (text, {})}), FakeAgent("/b", {})
    job, _ = job_of(source, target)
    tree = Tree(source.place(1), False, (SourceFile("m", 10, 1, 1, 0o644),), manifest=text)
    assert job.prepare(source, target, tree)[0].manifest == text
