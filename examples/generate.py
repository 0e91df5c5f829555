"""Load a model by rules and let it write.

python examples/generate.py [MODEL] [PROMPT]

MODEL is a folder, a .gguf file, a hub id, or "demo" (the default).
"""

import sys

import ktitan


def main(model_name: str = "demo", prompt: str = "The best way to learn a language is") -> None:
    model, tokenizer = ktitan.load(model_name)
    print(model.ktitan.plan.summary(), file=sys.stderr)
    for piece in ktitan.stream(model, tokenizer, prompt, max_new_tokens=48, greedy=True):
        print(piece, end="", flush=True)
    print()

    # The stock API keeps working on the same object.
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    print(tokenizer.decode(output[0], skip_special_tokens=True))


if __name__ == "__main__":
    main(*sys.argv[1:3])
