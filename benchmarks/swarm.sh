#!/usr/bin/env bash
# What the swarm's claims stand on: bash benchmarks/swarm.sh OUT [SEEDS [OPTIONS...]], as OUT "0 1 2" --workers 1 --eval-tasks 64
#
# First a short run of the search agent, whose model the sub-agents are. For each seed the swarm, and the same model as a single
# agent under the same critical steps; then, from the first seed's warm-up, the arms that each leave a part of the reward out.
# What was begun before is gone on with. Ends in OUT/swarm.json, swarm.md, swarm.png.
set -euo pipefail
out=${1:?a folder for the runs}; seeds=${2:-0 1 2}; shift $(($# < 2 ? $# : 2))
search=$(realpath -m "$out/search")
[ -f "$search/summary.json" ] || trivium train search --out "$search" --warmup 160 --sft-steps 20 --steps 6 --eval-tasks 48 --workers 1
for seed in $seeds; do trivium train swarm --seed "$seed" --out "$out/swarm-$seed" --subagents "$search/model" "$@"; done
for seed in $seeds; do trivium train swarm --seed "$seed" --out "$out/alone-$seed" --without swarm "$@"; done
seed=${seeds%% *}
for part in parallel anneal finish; do
  trivium train swarm --seed "$seed" --out "$out/no-$part-$seed" --without $part --subagents "$search/model" \
    --model "$out/swarm-$seed/model-sft" --sft-steps 0 "$@"
done
python -m benchmarks.swarm "$out"
