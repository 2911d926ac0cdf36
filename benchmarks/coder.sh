#!/usr/bin/env bash
# The coder's claims: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]. Each run goes on where it was stopped.
#   learns     held-out projects: RL over SFT, sampled and greedy, paired, and what detectors of hacks mark (docs/coder.md)
#   feedback   RL with textual feedback beside it and RL alone, from a warm-up that has seen hints: broken calls, reward
#   summaries  tasks of three or more windows: the policy's own summaries, a long prompted one, the oldest turns cut
# The runs of each begin at one warm-up; that of `learns` is the one of `trivium train coder` with the first seed.
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
warm_up hinted --feedback 0.2 --model "$out/warm/model-sft" --warmup 960 --sft-steps 45 --sft-lr 5e-4
from hinted alone --steps 14
from hinted feedback --steps 14 --feedback 0.2
trivium eval --compare $(runs learns) --json "$out/coder_learns.json" --out "$out/coder_learns.md" --plot "$out/coder_learns.png"
python -m benchmarks.feedback "$out"
warm_up short --grades 0 --window 1216 --groups 2 # single edits first: the ways differ in what comes on top
for way in own prompted cut; do
  long="--grades 6 --window 896 --warmup 960 --summary $way"
  warm_up warm-$way $long --model "$out/short/model-sft" --sft-steps 100 --groups 2
  from warm-$way $way $long --steps 0 --eval-tasks 64 # RL on top brought nothing, or did harm (docs/log.md)
done
trivium eval --compare $(runs own) $(runs prompted) $(runs cut) --json "$out/coder_summaries.json" --out "$out/coder_summaries.md"
