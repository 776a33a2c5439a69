import json

import pytest

from dflashctl.config.bench import BenchSpec
from dflashctl.stages.bench.account import (
    Asked,
    Counted,
    EndRecord,
    Extras,
    Journal,
    RequestRecord,
    SegmentRecord,
    ServerLabel,
    TurnRecord,
)
from dflashctl.stages.bench.apply import Start, conclude, run_turns
from dflashctl.stages.bench.plan import plan_bench
from dflashctl.stages.bench.prompts import read_prompts


@pytest.fixture
def label():
    def make(name, num_draft_tokens=None, **changes):
        fields = {
            "name": name,
            "base_url": "http://127.0.0.1:1",
            "model": name,
            "engine": "reference",
            "target": "/targets/demo",
            "drafter_label": "mine@900" if num_draft_tokens else None,
            "drafter_sha256": "d" * 64 if num_draft_tokens else None,
            "num_draft_tokens": num_draft_tokens,
            "about": {"dtype": "float32", "device": "cpu", "version": "1"},
        }
        return ServerLabel(**{**fields, **changes})

    return make


@pytest.fixture
def request_record():
    """A request whose chunks come at the given times; sent at 0, a token a chunk."""

    def make(times=(1.0, 2.0, 3.0), sizes=None, **changes):
        sizes = tuple([1] * len(times)) if sizes is None else sizes
        fields = {
            "segment": 0,
            "turn": 0,
            "arm": "baseline",
            "load": "c=1",
            "repeat": 0,
            "prompt_id": "a",
            "intended_s": 0.0,
            "sent_s": 0.0,
            "first_s": times[0] if times else None,
            "last_s": times[-1] if times else None,
            "ended_s": times[-1] if times else 1.0,
            "chunk_times_s": tuple(times),
            "chunk_sizes_tokens": sizes,
            "num_prompt_tokens": 5,
            "num_output_tokens": sum(sizes),
            "num_cached_tokens": None,
            "finish_reason": "length",
            "text": "text",
            "text_sha256": "0" * 64,
            "token_ids": tuple(range(sum(sizes))),
            "error": None,
        }
        return RequestRecord(**{**fields, **changes})

    return make


@pytest.fixture
def counted():
    def make(num_drafts, num_accepted, num_draft_tokens=None, per_position=()):
        drafted = 7 * num_drafts if num_draft_tokens is None else num_draft_tokens
        return Counted(
            num_drafts=num_drafts,
            num_draft_tokens=drafted,
            num_accepted_tokens=num_accepted,
            accepted_per_position=tuple(per_position),
        )

    return make


@pytest.fixture
def asked():
    def make(**changes):
        fields = {
            "prompts": "p.jsonl",
            "prompts_sha256": "a" * 64,
            "num_prompts": 3,
            "max_new_tokens": 16,
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": 0,
            "chat_template_kwargs": {},
            "concurrency": (1,),
            "rate_per_s": None,
            "num_repeats": 1,
            "num_warmup": 1,
        }
        return Asked(**{**fields, **changes})

    return make


@pytest.fixture
def benchmark_lines(label, request_record, counted, asked):
    """The lines of a benchmark at one request at a time: prompt i has 9 tokens, decoded in 8 s plainly and in the
    given seconds speculatively, in 4 verify steps that accepted 4 of 28 drafts (tau 2).
    """

    def make(speculative_s=(4.0, 8.0, 16.0), **changes):
        options = {
            "about": None,
            "base_steps": 0,
            "spec_steps": 4,
            "accepted": 4,
            "ids": None,
            "ended": True,
            **changes,
        }
        about = {"dtype": "float32", "device": "cpu", "version": "1"} if options["about"] is None else options["about"]
        servers = {"baseline": label("base", about=about), "speculative": label("spec", 7, about=about)}
        extras = Extras(token_ids=True, continuous_usage=True)
        lines = [
            SegmentRecord(
                segment=0,
                began_at_s=1_000_000.0,
                machine="Linux x86_64, 2 cores",
                dflashctl="0.1.0",
                asked=asked(**{"num_prompts": len(speculative_s), **options.get("asked", {})}),
                servers=servers,
                extras={"baseline": extras, "speculative": extras},
            )
        ]
        now_s, turn = 0.0, 0
        steps = {"baseline": 0, "speculative": 0}
        for index, spec_s in enumerate(speculative_s):
            for arm, seconds, sizes in (("baseline", 8.0, (1,) * 9), ("speculative", spec_s, (1, 2, 2, 2, 2))):
                gap = seconds / (len(sizes) - 1)
                times = tuple(now_s + 1.0 + gap * at for at in range(len(sizes)))
                ids = tuple(range(9)) if options["ids"] is None or arm == "baseline" else options["ids"]
                more = {"arm": arm, "prompt_id": f"p{index}", "turn": turn, "token_ids": ids}
                moment = {"intended_s": now_s, "sent_s": now_s, "ended_s": times[-1]}
                lines.append(request_record(times, sizes, **more, **moment))
                num = options["spec_steps"] if arm == "speculative" else options["base_steps"]
                before = counted(steps[arm], steps[arm] * options["accepted"] // 4)
                steps[arm] += num
                after = counted(steps[arm], steps[arm] * options["accepted"] // 4)
                lines.append(
                    TurnRecord(
                        segment=0,
                        turn=turn,
                        arm=arm,
                        load="c=1",
                        repeat=0,
                        block=index,
                        began_s=now_s,
                        ended_s=times[-1],
                        prompt_ids=(f"p{index}",),
                        before=before,
                        after=after,
                    )
                )
                now_s = times[-1]
                turn += 1
        return [*lines, EndRecord(segment=0, ended_s=now_s)] if options["ended"] else lines

    return make


@pytest.fixture
def prompts_file(tmp_path):
    def make(texts=("abc", "defg", "hij"), name="prompts.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"id": f"p{i}", "prompt": text}) + "\n" for i, text in enumerate(texts)))
        return path

    return make


@pytest.fixture
def bench(tmp_path, label, openai_stand_in, prompts_file):
    """A benchmark of two stand-ins, to be run; `bench.spec` and `bench.base` are the servers."""

    class Bench:
        def __init__(self):
            self.base, self.spec = openai_stand_in(), openai_stand_in(7)
            self.folder = tmp_path / "benchmark"
            self.prompts = read_prompts(prompts_file())
            self.said = []

        def plan(self, **changes):
            fields = {"server": "spec", "prompts": "-", "max_new_tokens": 10, "num_warmup": 0}
            finished = changes.pop("finished", frozenset())
            spec = BenchSpec(**{**fields, **changes})
            servers = (
                label("spec", 7, base_url=self.spec.base_url, about={}),
                label("base", base_url=self.base.base_url, about={}),
            )
            return plan_bench(spec, *servers, self.prompts, self.folder, finished=finished)

        def run(self, segment=0, **changes):
            plan = self.plan(**changes)
            return run_turns(plan, Journal(self.folder), Start(segment, "a machine", "0.1.0"), self.said.append)

        def report(self, **changes):
            self.run(**changes)
            return conclude(self.folder, self.prompts)

    return Bench()
