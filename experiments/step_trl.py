"""One GRPO step of TRL's GRPOTrainer, as a process that `benchmark_step.py` drives.

Runs with the Python of an environment that holds torch and trl. `trainer.train()` runs as always;
a callback holds it before each step until the next message, and its own methods are timed.
"""

import os
import tempfile
import time
from importlib.metadata import version

import torch
from datasets import Dataset
from step_protocol import Channel, Stopwatch, peak_bytes, reset_peak, reward
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MANY_STEPS = 10_000


class Turns(TrainerCallback):
    """Holds the trainer before each step, and answers after it."""

    def __init__(self, channel: Channel, clock: Stopwatch):
        self.channel, self.clock, self.trainer = channel, clock, None

    def on_step_begin(self, args, state, control, **_):
        """Waits for the next turn."""
        message = self.channel.receive()
        if message is None:
            os._exit(0)  # nothing to save
        if message.get("reset_peak"):
            reset_peak()
        self.clock.seconds.clear()
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        """Answers with the seconds of the phases."""
        whole = time.perf_counter() - self.start
        seconds, metrics = self.clock.seconds, self.trainer._metrics["train"]
        tokens = metrics["completions/mean_length"][-1]
        self.channel.send(
            {
                "generate": seconds["generate"],
                "score": seconds["generate and score"] - seconds["generate"],
                "update": whole - seconds["generate and score"],
                "sampled": round(tokens * args.per_device_train_batch_size),
                "entropy": metrics["entropy"][-1],
                "peak": peak_bytes(),
            }
        )


def configuration(work: dict, directory: str) -> GRPOConfig:
    """The fastest settings that do the same work: no checkpointed activations, one batch."""
    return GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=len(work["prompts"]) * work["group"],
        gradient_accumulation_steps=1,
        num_generations=work["group"],
        num_iterations=1,
        max_completion_length=work["completion_tokens"],
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        generation_kwargs={"min_new_tokens": work["completion_tokens"]},
        loss_type="grpo",
        beta=work["beta"],
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.999,
        max_grad_norm=1.0,
        max_steps=MANY_STEPS,
        shuffle_dataset=False,
        logging_steps=MANY_STEPS,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=work["seed"],
    )


def rewards(completion_ids, **_):
    """Rewards of a batch."""
    return [reward(ids) for ids in completion_ids]


def main() -> None:
    """Builds what the first message asks for, and trains turn by turn."""
    channel = Channel()
    work = channel.receive()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    clock = Stopwatch()
    turns = Turns(channel, clock)
    lora = None
    if work["lora_rank"]:
        from peft import LoraConfig

        lora = LoraConfig(
            r=work["lora_rank"], lora_alpha=work["lora_alpha"], target_modules=work["lora_targets"]
        )
    with tempfile.TemporaryDirectory() as directory:
        trainer = GRPOTrainer(
            model=work["model"],
            reward_funcs=rewards,
            args=configuration(work, directory),
            train_dataset=Dataset.from_dict({"prompt": work["prompts"] * 64}),
            callbacks=[turns],
            peft_config=lora,
        )
        turns.trainer = trainer
        trainer._generate = clock.timed("generate", trainer._generate)
        trainer._generate_and_score_completions = clock.timed(
            "generate and score", trainer._generate_and_score_completions
        )
        ids = trainer.processing_class(text=work["prompts"])["input_ids"]
        if ids != work["prompt_ids"]:
            raise ValueError("the peer's tokenizer reads the prompts as other tokens")
        trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
        versions = {name: version(name) for name in ("trl", "transformers", "torch")}
        channel.send({"trained": trained, "versions": versions})
        trainer.train()


if __name__ == "__main__":
    main()
