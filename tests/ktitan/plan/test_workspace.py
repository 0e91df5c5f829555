"""What a step takes beside weights and KV: counted for attention of each kind, and held against the kernel's count."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ktitan.plan.workspace import Attention, streamed_chunk, workspace_bytes

from support.tiny_models import CONFIGS

PROGRAM = Path(__file__).parents[2] / "support" / "peak_program.py"
TOKENS, SEEN = 512, 16384
MIB = 1 << 20


def on_meta(family, **changes):
    config = CONFIGS[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def grown(model, kind, seen=SEEN):
    """What a long context adds to a short one."""
    return workspace_bytes(model, torch.float32, TOKENS, seen, kind) - workspace_bytes(
        model, torch.float32, TOKENS, 64, kind
    )


def test_native_attention_holds_no_scores():
    for family in ("llama", "deepseek_v3"):
        assert grown(on_meta(family), Attention.NATIVE) == 2 * TOKENS * (SEEN - 64)  # the mask that transformers makes


def test_torch_holds_scores_where_it_has_no_fused_kernel():
    scores = 4 * 4 * TOKENS * (SEEN - 64)
    fused, latent = grown(on_meta("llama"), Attention.TORCH), grown(on_meta("deepseek_v3"), Attention.TORCH)
    assert fused < scores < 2 * scores < latent < 3 * scores
    written = on_meta("llama")
    written.config._attn_implementation = "eager"
    assert 3 * scores < grown(written, Attention.TORCH) < 4 * scores
    assert grown(on_meta("deepseek_v3"), Attention.FUSED) < scores


def test_a_chunk_grows_where_scores_leave_room():
    model = on_meta("deepseek_v3")
    room = 8 * workspace_bytes(model, torch.float32, 1024, SEEN, Attention.NATIVE)
    assert streamed_chunk(model, torch.float32, room, SEEN, Attention.NATIVE) == 1024
    assert streamed_chunk(model, torch.float32, room, SEEN, Attention.TORCH) == 512
    assert streamed_chunk(model, torch.float32, room, 300, Attention.NATIVE) == 300


@pytest.mark.parametrize("tokens", [16384])
def test_a_long_prompt_takes_what_is_planned(tokens):
    """Within 5 %; measured by the kernel in a process of its own."""
    command = [sys.executable, "-P", str(PROGRAM), str(tokens)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert 0.95 < figures["took"] / figures["planned"] < 1.05, figures
