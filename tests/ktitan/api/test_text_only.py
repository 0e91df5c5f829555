"""Multimodal checkpoints: used for text where transformers can, with a note, and refused in a sentence otherwise."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

import ktitan
from ktitan.api.build import build_model
from ktitan.errors import UnsupportedError

TEXT = {
    "vocab_size": 264,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
VISION = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}


def gemma3():
    vision = {**VISION, "num_attention_heads": 2, "model_type": "siglip_vision_model"}
    return transformers.Gemma3Config(
        text_config={**TEXT, "model_type": "gemma3_text"},
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=200,
    )


def mllama():
    vision = {"attention_heads": 2, "num_global_layers": 1, "vision_output_dim": 64, "intermediate_layers_indices": [0]}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    return transformers.MllamaConfig(
        text_config={**TEXT, **rope, "cross_attention_layers": [1]},
        vision_config={**VISION, **vision, "supported_aspect_ratios": [[1, 1]]},
    )


def llava():
    vision = transformers.CLIPVisionConfig(**VISION, num_attention_heads=2)
    return transformers.LlavaConfig(text_config=transformers.LlamaConfig(**TEXT), vision_config=vision)


@pytest.mark.parametrize(
    ("make", "stock", "built", "note"),
    [
        (gemma3, "Gemma3ForConditionalGeneration", "Gemma3ForConditionalGeneration", "are loaded and stay idle"),
        (mllama, "MllamaForConditionalGeneration", "MllamaForCausalLM", "are left out (MllamaForCausalLM"),
    ],
)
def test_the_text_part_is_used_and_the_plan_says_so(rig, tmp_path, make, stock, built, note):
    torch.manual_seed(5)
    whole = getattr(transformers, stock)(make()).eval()
    rig.save(tmp_path, whole, rig.byte_tokenizer())
    model, tokenizer = ktitan.load(tmp_path, device="cpu")
    assert type(model).__name__ == built
    (said,) = [one for one in model.ktitan.plan.notes if "multimodal" in one]
    assert "used for text only: parts of vision_config" in said
    assert note in said
    planned = [one for one in model.ktitan.plan.notes if not one.startswith("steps run as")]  # known once it is loaded
    assert ktitan.plan_model(tmp_path, device="cpu").notes == planned
    ids = torch.randint(3, 190, (2, 9))
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-5)
    with pytest.raises(UnsupportedError, match="'image' is not text"):
        ktitan.stream(model, tokenizer, [{"role": "user", "content": [{"type": "image"}]}])


def test_tensors_of_the_text_part_are_still_missed(rig, tmp_path):
    whole = transformers.MllamaForConditionalGeneration(mllama())
    del whole.model.language_model.layers[0].mlp.up_proj.weight
    rig.save(tmp_path, whole, rig.byte_tokenizer())
    with pytest.raises(ktitan.WeightError, match=r"layers\.0\.mlp\.up_proj\.weight"):
        ktitan.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (llava(), r"llava: is a multimodal model \(vision_config\) for which transformers has no text-only class"),
        (transformers.Qwen2AudioConfig(), r"qwen2_audio: is a multimodal model \(audio_config\)"),
        (transformers.WhisperConfig(), "whisper: is an encoder-decoder"),
        (transformers.T5Config(), "t5: is an encoder-decoder"),
        (transformers.SiglipVisionConfig(), "transformers has no causal language model of this type"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_models_without_a_text_class_are_refused_in_a_sentence(config, words):
    with pytest.raises(UnsupportedError, match=words) as caught:
        build_model(config, torch.float32)
    assert caught.value.remedy
    assert len(str(caught.value)) < 250


def test_a_package_that_a_model_needs_is_named(monkeypatch):
    def fail(*args, **kwargs):
        raise ImportError("\nTimmWrapperModel requires the PIL library but it was not found. You can install it")

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", fail)
    with pytest.raises(UnsupportedError, match="TimmWrapperModel requires the PIL library but it was not found"):
        build_model(gemma3(), torch.float32)
