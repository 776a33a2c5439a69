"""The engine that comes with the bundle (dflashctl_remote/serve): for correctness, small machines and tests."""

from pathlib import Path

from dflashctl.config.servers import ServerSpec
from dflashctl.engines.base import Launch, LaunchSite, Readiness, Shutdown, SpecCounters
from dflashctl.engines.prometheus import total, total_by
from dflashctl.errors import ConfigError
from dflashctl_remote.spec.serve import ServeSpec

OPTIONS = ("device", "dtype", "num_threads", "max_waiting")


class ReferenceEngine:
    name = "reference"
    readiness = Readiness("/health", "/metrics", timeout_s=600.0, fatal_log_lines=())
    shutdown = Shutdown(grace_s=20.0)

    def launch(self, spec: ServerSpec, drafter: Path | None, site: LaunchSite) -> Launch:
        unknown = sorted(set(spec.options) - set(OPTIONS))
        if unknown:
            raise ConfigError(
                f"server {spec.name}: the reference engine has no option {unknown[0]}",
                hint=f"its own options: {', '.join(OPTIONS)}",
            )
        content = ServeSpec.model_validate(
            {
                "target": spec.target,
                "drafter": None if drafter is None else str(drafter),
                "served_name": spec.served_name or spec.name,
                "port": spec.port,
                "num_draft_tokens": spec.num_draft_tokens,
                "max_running": spec.max_running,
                "max_length_tokens": spec.max_length_tokens,
                **spec.options,
            }
        )
        spec_path, events = site.folder / "spec.json", site.folder / "events.jsonl"
        entry = "dflashctl_remote.entry.serve"
        return Launch(
            argv=(site.python, "-m", entry, "--spec", str(spec_path), "--events", str(events)),
            env=(("PYTHONPATH", str(site.bundle_root)), ("PYTHONUNBUFFERED", "1"), ("GOMP_SPINCOUNT", "2000")),
            files=((spec_path, content.model_dump_json(indent=2) + "\n"),),
            needs_modules=(
                "torch",
                "transformers",
                "numpy",
                "safetensors",
                "starlette",
                "uvicorn",
                "prometheus_client",
            ),
        )

    def counters(self, metrics_text: str) -> SpecCounters | None:
        return spec_decode_counters(metrics_text)


def spec_decode_counters(metrics_text: str) -> SpecCounters | None:
    """Counters under vLLM's names (`vllm:spec_decode_*_total`), which this engine uses as well."""
    drafts = total(metrics_text, "vllm:spec_decode_num_drafts_total")
    if drafts is None:
        return None
    by_position = total_by(metrics_text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    positions = sorted((int(position), int(value)) for position, value in by_position.items())
    return SpecCounters(
        num_drafts=int(drafts),
        num_draft_tokens=int(total(metrics_text, "vllm:spec_decode_num_draft_tokens_total") or 0),
        num_accepted_tokens=int(total(metrics_text, "vllm:spec_decode_num_accepted_tokens_total") or 0),
        accepted_per_position=tuple(value for _, value in positions),
    )
