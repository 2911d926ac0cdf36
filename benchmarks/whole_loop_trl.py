"""TRL's side of benchmarks/whole_loop.py, for an interpreter that has TRL: `python whole_loop_trl.py FOLDER`, or by torchrun.

Reads FOLDER/given (the model, prompts, the worlds' passages), trains with GRPOTrainer and writes FOLDER/theirs-RANK: wall
and CPU seconds, tokens and turns of each step. Imports nothing of trivium.
"""

from __future__ import annotations

import json
import math
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
from transformers import AutoTokenizer, TrainerCallback
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


class Index:
    """BM25 over a world's passages."""

    def __init__(self, passages: list[tuple[str, str]]) -> None:
        self.passages = passages
        counts = [Counter(_words(text)) for _, text in passages]
        mean = sum(sum(count.values()) for count in counts) / len(counts)
        have = Counter(word for count in counts for word in count)
        self.postings: dict[str, list[tuple[int, float]]] = {}
        for number, count in enumerate(counts):
            length = 1.2 * (0.25 + 0.75 * sum(count.values()) / mean)
            for word, times in count.items():
                rare = math.log(1 + (len(counts) - have[word] + 0.5) / (have[word] + 0.5))
                self.postings.setdefault(word, []).append((number, rare * times * 2.2 / (times + length)))

    def search(self, query: str) -> list[tuple[str, str]]:
        scores: Counter = Counter()
        for word in _words(query):
            for number, weight in self.postings.get(word, ()):
                scores[number] += weight
        return [self.passages[number] for number, _ in scores.most_common()]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


INDICES = {name: Index(passages) for name, passages in GIVEN["worlds"].items()}


class Environment:
    """An episode's tools, with our side's words: handles, the usage line, and no results past the window."""

    def reset(self, name: str, opening: int, **_) -> None:
        self._index, self._used, self._seen = INDICES[name], opening, {}

    def search_corpus(self, query: str) -> str:
        """Search the corpus by words and meaning. Returns passages not seen before, best first.

        Args:
            query: what to look for, in words
        """
        if not query.strip():
            return self._placed("Error: the query is empty\n")
        found = [passage for passage in self._index.search(query) if passage[0] not in self._seen]
        return self._results(found[: GIVEN["results"]])

    def grep_corpus(self, pattern: str) -> str:
        """Find passages whose text matches a regular expression.

        Args:
            pattern: a regular expression
        """
        try:
            matching = re.compile(pattern.strip())
        except re.error as error:
            return self._placed(f"Error: {error}\n")
        return self._results([p for p in self._index.passages if matching.search(p[1]) and p[0] not in self._seen][:5])

    def read_document(self, doc_id: str) -> str:
        """Read the document to which a passage belongs, as far as the budget allows.

        Args:
            doc_id: a handle of one passage
        """
        if doc_id.strip() not in self._seen.values():
            return self._placed(f"Error: {doc_id} is not in view\n")
        return self._placed("Nothing new.\n")

    def _results(self, passages: list[tuple[str, str]]) -> str:
        if self._used > GIVEN["hard"] * GIVEN["budget"]:
            return self._placed("Error: the window is nearly full: prune_chunks or answer\n")
        text, room = "", GIVEN["budget"] - GIVEN["reply"] - self._used - 60  # the call itself and the usage line
        for id, passage in passages:
            room -= _length(passage) + 4
            if room < 0:
                break
            text += f"{passage} {self._seen.setdefault(id, f'#{len(self._seen) + 1}')} \n".replace(" \n", "\n")
        return self._placed(text or ("No room for results.\n" if passages else "Nothing new.\n"))

    def _placed(self, text: str) -> str:
        self._used += _length(text) + 60
        return f"{text}[Token usage: {self._used:,}/{GIVEN['budget']:,}]" + (
            " Prune or answer." if self._used > 0.5 * GIVEN["budget"] else ""
        )


def _length(text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


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
        made["learn_s"] -= made["rollout_s"] + made["prepare_s"]  # a training step prepares its batch first
        made["rest_s"] = made["wall_s"] - made["rollout_s"] - made["learn_s"]
        made["turns"] /= made["episodes"]
        self.steps.append(made)
        self.seen.clear()


def watch(trainer: GRPOTrainer, clock: Clock) -> None:
    """Count and time what the trainer does, changing nothing: rollouts, what is made of them, training steps."""
    generate, turn = trainer._generate, trainer._generate_single_turn
    step, prepare = trainer.training_step, trainer._prepare_inputs

    def timed(name: str, work, *arguments, **named):
        began = time.perf_counter()
        found = work(*arguments, **named)
        clock.seen[name] += time.perf_counter() - began
        return found

    def _generate(prompts):
        found = timed("rollout_s", generate, prompts)
        prompt_ids, completion_ids, tool_mask = found[:3]
        clock.seen["episodes"] += len(prompt_ids)
        clock.seen["sampled"] += sum(map(sum, tool_mask))
        clock.seen["read"] += sum(map(len, prompt_ids)) + sum(map(len, completion_ids))
        return found

    def _turn(prompt_ids, *arguments, **named):
        clock.seen["turns"] += len(prompt_ids)
        return turn(prompt_ids, *arguments, **named)

    def _prepare(batch):
        before = clock.seen["rollout_s"]
        found = timed("prepare_s", prepare, batch)
        clock.seen["prepare_s"] -= clock.seen["rollout_s"] - before
        return found

    trainer._generate, trainer._generate_single_turn, trainer._prepare_inputs = _generate, _turn, _prepare
    trainer.training_step = lambda *arguments, **named: timed("learn_s", step, *arguments, **named)


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
    asked = {"prompt": GIVEN["prompts"], "name": GIVEN["names"], "opening": openings}
    clock = Clock()
    trainer = GRPOTrainer(
        GIVEN["model"], reward_funcs=chance, args=config, train_dataset=Dataset.from_dict(asked), processing_class=tokenizer,
        environment_factory=Environment, callbacks=[clock],
    )  # fmt: skip
    watch(trainer, clock)
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
