"""Put trained weights into the demo target's folder, in bf16 and beside the tokenizer that is there."""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from scripts.demo_target.model import model_config, write_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="a file written by train.py")
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    model = Qwen3_5ForCausalLM(model_config(AutoTokenizer.from_pretrained(args.folder)))
    missing, unexpected = model.load_state_dict(load_file(args.weights), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    write_model(model, args.folder)


if __name__ == "__main__":
    main()
