"""Triton's autotuners and fla's tensor caches, made safe for threads; README.md has the why."""
