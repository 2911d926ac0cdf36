"""TRL's side of benchmarks/whole_loop.py, for an interpreter that has TRL: `python whole_loop_trl.py FOLDER`, or by torchrun.

Reads FOLDER/given (the model, prompts, and the episodes that our side has made of them), trains with GRPOTrainer on the same
episodes and writes FOLDER/theirs-RANK: wall and CPU seconds, tokens and turns of each step. Imports nothing of trivium.

The trainer is TRL's own and nothing in it is changed: its model computes and samples every token, but a logits processor
lets it sample only what our side sampled there, and its tools answer what ours did.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoTokenizer, LogitsProcessor, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

FOLDER = Path(sys.argv[1])
GIVEN = pickle.loads((FOLDER / "given").read_bytes())
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
MICRO = 8

# Qwen3's own, without schemas and empty thoughts: the tokens that our side's prompts and results have
TEMPLATE = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}"
    "{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}"
    '{{- \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

tokenizer = AutoTokenizer.from_pretrained(GIVEN["model"])
tokenizer.chat_template = TEMPLATE
tokenizer.response_template = qwen3_template


class Book:
    """What our side's episodes said: replies by the text before them, tool results by the calls so far."""

    def __init__(self, episodes: list[dict]) -> None:
        self.replies: dict[str, list[list[int]]] = {}
        self.results: dict[tuple[str, ...], str] = {}
        for episode in episodes:
            for before, reply in episode["replies"]:
                self.replies.setdefault(_plain(before), []).append(reply)
            asked = [episode["prompt"]]
            for name, arguments, result in episode["calls"]:
                asked.append(_call(name, arguments))
                self.results[tuple(asked)] = result

    def reply(self, before: str) -> list[int] | None:
        """The next of those that followed this text: the samples of a group begin alike."""
        queue = self.replies.get(_plain(before))
        if queue is None:
            return None
        queue.append(queue.pop(0))
        return queue[-1]


def _plain(text: str) -> str:
    """Without space and usage lines: only a turn's last result has one, which its tools cannot know."""
    return re.sub(r"\[Token usage[^\n<]*|\s+", "", text)


def _call(name: str, arguments: dict) -> str:
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


BOOK = Book(GIVEN["episodes"])


class Environment:
    """The tools, answering as they did on our side, in no time. Where an episode ended on its window, what TRL leaves out as
    too long, which ends it there too."""

    def reset(self, prompt: list[dict], **_) -> None:
        self._asked = [prompt[-1]["content"]]

    def search_corpus(self, query: str) -> str:
        """Search the corpus by words and meaning.

        Args:
            query: what to look for, in words
        """
        return self._answer("search_corpus", {"query": query})

    def grep_corpus(self, pattern: str) -> str:
        """Find passages whose text matches a regular expression.

        Args:
            pattern: a regular expression
        """
        return self._answer("grep_corpus", {"pattern": pattern})

    def read_document(self, doc_id: str) -> str:
        """Read the document to which a passage belongs.

        Args:
            doc_id: a handle of one passage
        """
        return self._answer("read_document", {"doc_id": doc_id})

    def prune_chunks(self, keep: list[str]) -> str:
        """No tool of this agent: what our side answers to a model that asks for it.

        Args:
            keep: handles
        """
        return self._answer("prune_chunks", {"keep": keep})

    def _answer(self, name: str, arguments: dict) -> str:
        self._asked.append(_call(name, arguments))
        return BOOK.results.get(tuple(self._asked), "too long " * GIVEN["budget"])


class Replay(LogitsProcessor):
    """Lets each row sample its next recorded token only, and the stop token after the last; rows without any go free."""

    def __init__(self, width: int, replies: list[list[int] | None]) -> None:
        self.width, self.replies = width, replies

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at, free = input_ids.shape[1] - self.width, torch.full_like(scores, float("-inf"))
        for row, reply in enumerate(self.replies):
            if reply is None:
                free[row] = scores[row]
            else:
                free[row, reply[at] if at < len(reply) else tokenizer.eos_token_id] = 0.0
        return free


def replaying(trainer: GRPOTrainer, seen: Counter) -> None:
    """Make the model's `generate` say what the book has."""
    net = trainer.accelerator.unwrap_model(trainer.model)
    generate = net.generate

    def _generate(input_ids, attention_mask, **named):
        before = [tokenizer.decode(row[kept]) for row, kept in zip(input_ids, attention_mask.bool(), strict=True)]
        replies = [BOOK.reply(text) for text in before]
        seen["strayed"] += replies.count(None)
        forced = [Replay(input_ids.shape[1], replies)]
        return generate(input_ids=input_ids, attention_mask=attention_mask, logits_processor=forced, **named)

    net.generate = _generate


def chance(completions, **_) -> list[float]:
    return [random.random() for _ in completions]


class Clock(TrainerCallback):
    """Wall and CPU seconds of each step, and what `watch` saw in it."""

    def __init__(self) -> None:
        self.steps, self.seen, self.mark = [], Counter(), (0.0, 0.0)

    def on_train_begin(self, *_, **__) -> None:
        self.mark = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_, **__) -> None:
        (wall, cpu), self.mark = self.mark, (time.perf_counter(), time.process_time())
        made = dict(self.seen) | {"wall_s": self.mark[0] - wall, "cpu_s": self.mark[1] - cpu, "publish_s": 0.0}
        for unit in ("s", "cpu_s"):  # a training step prepares its batch first, and to prepare is to generate
            made[f"learn_{unit}"] -= made[f"prepare_{unit}"]
        made["rest_s"] = made["wall_s"] - made["rollout_s"] - made["learn_s"]
        made["turns"] /= made["episodes"]
        self.steps.append(made)
        self.seen.clear()


def watch(trainer: GRPOTrainer, clock: Clock) -> None:
    """Count and time what the trainer does, changing nothing: rollouts, what is made of them, training steps."""
    generate, turn = trainer._generate, trainer._generate_single_turn
    step, prepare = trainer.training_step, trainer._prepare_inputs

    def timed(name: str, work, *arguments, **named):
        wall, cpu = time.perf_counter(), time.process_time()
        found = work(*arguments, **named)
        clock.seen[f"{name}_s"] += time.perf_counter() - wall
        clock.seen[f"{name}_cpu_s"] += time.process_time() - cpu
        return found

    def _generate(prompts):
        found = timed("rollout", generate, prompts)
        prompt_ids, completion_ids, tool_mask = found[:3]
        clock.seen["episodes"] += len(prompt_ids)
        clock.seen["sampled"] += sum(map(sum, tool_mask))
        clock.seen["read"] += sum(map(len, prompt_ids)) + sum(map(len, completion_ids))
        return found

    def _turn(prompt_ids, *arguments, **named):
        clock.seen["turns"] += len(prompt_ids)
        return turn(prompt_ids, *arguments, **named)

    trainer._generate, trainer._generate_single_turn = _generate, _turn
    trainer._prepare_inputs = lambda batch: timed("prepare", prepare, batch)
    trainer.training_step = lambda *arguments, **named: timed("learn", step, *arguments, **named)


def train() -> Clock:
    rows = GIVEN["groups"] * GIVEN["size"]
    openings = [len(tokens) for tokens in GIVEN["openings"]]
    config = GRPOConfig(
        output_dir=str(FOLDER / "out"), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, shuffle_dataset=False,
        max_steps=GIVEN["steps"], learning_rate=1e-6,
        lr_scheduler_type="constant", per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=rows // MICRO // WORLD,
        num_generations=GIVEN["size"], max_completion_length=GIVEN["budget"] - min(openings), temperature=1.0, beta=0.0,
        max_tool_calling_iterations=GIVEN["turns"] - 1, generation_kwargs={"max_new_tokens": GIVEN["reply"]},
        loss_type="cispo", epsilon_high=5.0, model_init_kwargs={"dtype": "float32"}, remove_unused_columns=False,
    )  # fmt: skip
    clock = Clock()
    trainer = GRPOTrainer(
        GIVEN["model"], reward_funcs=chance, args=config, train_dataset=Dataset.from_dict({"prompt": GIVEN["prompts"]}),
        processing_class=tokenizer, environment_factory=Environment, callbacks=[clock],
    )  # fmt: skip
    watch(trainer, clock)
    replaying(trainer, clock.seen)
    trainer.train()
    return clock


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    opening = tokenizer.apply_chat_template(GIVEN["prompts"][0], add_generation_prompt=True, return_dict=False)
    if list(opening) != list(GIVEN["openings"][0]):
        raise SystemExit(f"the prompts differ:\n{tokenizer.decode(opening)}\n{tokenizer.decode(GIVEN['openings'][0])}")
    steps = train().steps
    (FOLDER / f"theirs-{RANK}").write_text(json.dumps(steps))
    if RANK == 0:
        (FOLDER / "versions").write_text(json.dumps({"trl": trl.__version__, "transformers_of_trl": transformers.__version__}))


if __name__ == "__main__":
    main()
