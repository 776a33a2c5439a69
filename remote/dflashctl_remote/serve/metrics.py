"""What the server counts, under vLLM's names, so that whoever reads vLLM reads this.

As in vLLM, a step without drafts counts nowhere, and accepted tokens count before the answer is cut at a stop or at
its length.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dflashctl_remote.serve.generation import Step

FINISHED_REASONS = ("stop", "length", "abort", "error")


@dataclass(frozen=True)
class Occupancy:
    num_running: int = 0
    num_waiting: int = 0


@dataclass
class Speculation:
    """Verify steps that had drafts, of one request or of all."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """Position 0 is the first draft; unconditional: steps whose drafts up to there were all accepted."""

    def add(self, step: Step) -> None:
        if not step.num_drafts:
            return
        self.num_drafts += 1
        self.num_draft_tokens += step.num_drafts
        self.num_accepted_tokens += step.num_accepted
        self.accepted_per_position += [0] * (step.num_drafts - len(self.accepted_per_position))
        for position in range(step.num_accepted):
            self.accepted_per_position[position] += 1


class Counters:
    """Since the start. Written by the thread that decodes, read by any: no reader sees half a step."""

    def __init__(self, model_name: str, num_draft_tokens: int) -> None:
        """`num_draft_tokens` 0: no drafter, and no counters of speculation."""
        self._model_name = model_name
        self._lock = threading.Lock()
        self._has_drafter = num_draft_tokens > 0
        self._speculation = Speculation(accepted_per_position=[0] * num_draft_tokens)
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished = dict.fromkeys(FINISHED_REASONS, 0)

    def add_prompt(self, num_tokens: int) -> None:
        with self._lock:
            self._num_prompt_tokens += num_tokens

    def add_step(self, step: Step, *, num_kept: int) -> None:
        """`num_kept` of its tokens are the answer's."""
        with self._lock:
            self._speculation.add(step)
            self._num_generation_tokens += num_kept

    def add_finished(self, reason: str) -> None:
        with self._lock:
            self._num_finished[reason] += 1

    def exposition(self, occupancy: Callable[[], Occupancy]) -> bytes:
        """The Prometheus text of this moment."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(lambda: [*self._gauges(occupancy()), *self._families()]))
        return generate_latest(registry)

    def _gauges(self, now: Occupancy) -> list[Metric]:
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests that are decoded.", labels=("model_name",))
        running.add_metric((self._model_name,), now.num_running)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests without a slot.", labels=("model_name",))
        waiting.add_metric((self._model_name,), now.num_waiting)
        return [running, waiting]

    def _families(self) -> list[Metric]:
        with self._lock:
            families = [
                self._counter("prompt_tokens", "Prompt tokens processed.", self._num_prompt_tokens),
                self._counter("generation_tokens", "Tokens of answers.", self._num_generation_tokens),
                self._counter_by("finished_reason", "request_success", "Requests that ended.", self._num_finished),
            ]
            if not self._has_drafter:
                return families
            seen = self._speculation
            by_position = {str(position): count for position, count in enumerate(seen.accepted_per_position)}
            return [
                *families,
                self._counter("spec_decode_num_drafts", "Verify steps that had drafts.", seen.num_drafts),
                self._counter("spec_decode_num_draft_tokens", "Drafted tokens.", seen.num_draft_tokens),
                self._counter("spec_decode_num_accepted_tokens", "Accepted drafts.", seen.num_accepted_tokens),
                self._counter_by(
                    "position",
                    "spec_decode_num_accepted_tokens_per_pos",
                    "Verify steps whose drafts up to this position were all accepted.",
                    by_position,
                ),
            ]

    def _counter(self, name: str, about: str, value: int) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", about, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter_by(self, label: str, name: str, about: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", about, labels=("model_name", label))
        for key, value in values.items():
            family.add_metric((self._model_name, key), value)
        return family


class _Snapshot(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead: a registry would collect once more for the names."""
        return []

    def collect(self) -> Iterable[Metric]:
        return self._read()
