"""Writes golden_smollm2.json: what transformers' own SmolLM2 computes in float32 on this CPU.

python experiments/get_smollm2.py --out=models/smollm2-135m
python tests/policy/make_smollm2_golden.py models/smollm2-135m
"""

import json
import sys
from pathlib import Path

GOLDEN = Path(__file__).with_name("golden_smollm2.json")
NUM_TOKENS = 64
SYSTEM = "You play card games. Answer with one word."
# Questions, games, code, numbers, other scripts; two with a system message, one with two turns.
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Count from 1 to 20, separated by commas."}],
    [{"role": "user", "content": "Write a Python function that adds two numbers."}],
    [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Your card is K. The other player bet. Reply FOLD or CALL."},
    ],
    [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Your card is J. Nobody has acted. Reply PASS or BET."},
    ],
    [{"role": "user", "content": "Translate into French: The weather is nice today."}],
    [
        {"role": "user", "content": "My name is Zoë."},
        {"role": "assistant", "content": "Hello Zoë! How can I help you?"},
        {"role": "user", "content": "What is my name?"},
    ],
    [{"role": "user", "content": "Tell me a short story about a robot who learns to bluff."}],
    [{"role": "user", "content": "What is 1234 + 8766?\n\nShow your work."}],
    [{"role": "user", "content": "Explain 日本語 and emoji 🙂 in two sentences."}],
]
PARAGRAPH = (
    "In game theory, a mixed strategy assigns a probability to each pure strategy, so that a "
    "player may choose at random. The idea became famous in 1928, when John von Neumann showed "
    "that every two-player zero-sum game with finitely many moves has a value: one side can "
    "secure at least that much, and the other can prevent it from getting more. Rock, paper and "
    "scissors is the best-known example; playing each of the three with probability 1/3 cannot "
    "be exploited, whatever the opponent does.\n"
)


def main(directory: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    chats = []
    with torch.no_grad():
        for chat in CHATS:
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            prompt = tokenizer(text, add_special_tokens=False).input_ids
            tokens, margins, inputs, cache = [], [], torch.tensor([prompt]), None
            for _ in range(NUM_TOKENS):  # past an end token too: it is a comparison, not a chat
                output = model(inputs, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                best = output.logits[0, -1].topk(2)
                tokens.append(int(best.indices[0]))
                margins.append(float(best.values[0] - best.values[1]))
                inputs = best.indices[:1][None]
            chats.append({"prompt": prompt, "tokens": tokens, "margin": round(min(margins), 5)})
            print(f"least margin {min(margins):.5f}: {tokenizer.decode(tokens)!r}")
        paragraph = tokenizer(PARAGRAPH, add_special_tokens=False).input_ids
        scores = model(torch.tensor([paragraph])).logits[0].log_softmax(-1)
        log_probs = scores[:-1].gather(1, torch.tensor(paragraph[1:])[:, None])[:, 0]
    golden = {
        "made_with": f"torch {torch.__version__}",
        "chats": chats,
        "paragraph": paragraph,
        "log_probs": [round(float(value), 6) for value in log_probs],
    }
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    GOLDEN.write_text("{\n" + rows + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
