#!/usr/bin/env bash
# The coder's claims: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]. Each run goes on where it was stopped.
#   learns     held-out projects: RL over SFT, sampled and greedy, paired, and what detectors of hacks mark (docs/coder.md)
#   feedback   the same steps with textual feedback beside RL: broken calls, reward
#   summaries  tasks of three or more windows: the policy's own summaries, a long prompted one, the oldest turns cut
# The runs of each begin at one warm-up, that of `trivium train coder` with the first seed.
set -euo pipefail
out=$(realpath -m "${1:?"name a folder: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]"}")
sandbox=${2:-ns}
seeds=${3:-"0 1 2"}

runs() { for seed in $seeds; do echo "$out/$1-$seed"; done; }
train() { trivium train coder --out "$out/$1" --sandbox "$sandbox" "${@:2}"; }
warm_up() { train "$1" --seed "${seeds%% *}" --steps 1 --eval-tasks 8 "${@:2}"; }
from() { for seed in $seeds; do train "$2-$seed" --seed "$seed" --model "$out/$1/model-sft" --sft-steps 0 "${@:3}"; done; }

warm_up warm
from warm learns
from warm feedback --feedback 0.2
trivium eval --compare $(runs learns) --json "$out/coder_learns.json" --out "$out/coder_learns.md" --plot "$out/coder_learns.png"
trivium eval --compare $(runs learns) $(runs feedback) --json "$out/coder_feedback.json" --out "$out/coder_feedback.md"
warm_up short --grades 0 --window 1216 --groups 2  # single edits first: the ways differ in what comes on top
long="--grades 4 --window 1216 --warmup 640"
for way in own prompted cut; do
  warm_up warm-$way $long --summary $way --model "$out/short/model-sft" --sft-steps 80 --groups 2
  from warm-$way $way $long --summary $way --steps 10 --groups 8 --eval-tasks 96
done
trivium eval --compare $(runs own) $(runs prompted) $(runs cut) --json "$out/coder_summaries.json" --out "$out/coder_summaries.md"
