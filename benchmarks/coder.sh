#!/usr/bin/env bash
# The coder's claims: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]. Each run goes on where it was stopped.
#   learns     held-out projects: RL over SFT, sampled and greedy, paired (docs/coder.md)
#   feedback   from the same warm-up, the same steps with textual feedback beside RL: broken calls, reward
#   summaries  tasks of two or three windows: the policy's own summaries, a long prompted one, the oldest turns cut
# The first seed warms up, and the others go on from its warm-up, so that all are the same model.
set -euo pipefail
out=$(realpath -m "${1:?"name a folder: bash benchmarks/coder.sh OUT [SANDBOX] [SEEDS]"}")
sandbox=${2:-ns}
seeds=${3:-"0 1 2"}
first=${seeds%% *}

runs() { for seed in $seeds; do echo "$out/$1-$seed"; done; }
train() { trivium train coder --out "$out/$1-$2" --seed "$2" --sandbox "$sandbox" "${@:3}"; }
warm() { [ "$1-$2" = "$1-$first" ] || echo --model "$out/$1-$first/model-sft" --sft-steps 0; }

for seed in $seeds; do
  train learns "$seed" $(warm learns "$seed")
  train feedback "$seed" --model "$out/learns-$first/model-sft" --sft-steps 0 --feedback 0.5
done
trivium eval --compare $(runs learns) --json "$out/coder_learns.json" --out "$out/coder_learns.md" --plot "$out/coder_learns.png"
trivium eval --compare $(runs learns) $(runs feedback) --json "$out/coder_feedback.json" --out "$out/coder_feedback.md"
for way in own prompted cut; do
  for seed in $seeds; do train $way "$seed" --grades 4 --summary $way $(warm $way "$seed"); done
done
trivium eval --compare $(runs own) $(runs prompted) $(runs cut) --json "$out/coder_summaries.json" --out "$out/coder_summaries.md"
