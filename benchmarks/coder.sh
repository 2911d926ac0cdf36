#!/usr/bin/env bash
# The coder's claims: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]. Each run goes on where it was stopped.
#   learns     held-out projects: RL over SFT, sampled and greedy, paired (docs/coder.md)
#   feedback   from the same warm-ups, the same steps with textual feedback beside RL: broken calls, reward
#   summaries  tasks of two or three windows: the policy's own summaries, a long prompted one, the oldest turns cut
set -euo pipefail
out=${1:?"name a folder: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]"}
sandbox=${2:-ns}
seeds=${3:-"0 1 2"}

runs() { for seed in $seeds; do echo "$out/$1-$seed"; done; }
train() { trivium train coder --out "$out/$1" --sandbox "$sandbox" "${@:2}"; }

for seed in $seeds; do
  train learns-$seed --seed $seed --grades 0
  train feedback-$seed --seed $seed --grades 0 --model "$out/learns-$seed/model-sft" --sft-steps 0 --feedback 0.5
  for way in own prompted cut; do
    train $way-$seed --seed $seed --grades 4 --summary $way
  done
done
trivium eval --compare $(runs learns) --json "$out/coder_learns.json" --out "$out/coder_learns.md"
trivium eval --compare $(runs learns) $(runs feedback) --json "$out/coder_feedback.json" --out "$out/coder_feedback.md"
trivium eval --compare $(runs own) $(runs prompted) $(runs cut) --json "$out/coder_summaries.json" --out "$out/coder_summaries.md"
