#!/usr/bin/env bash
# What the swarm's claims stand on: bash benchmarks/swarm.sh OUT [SEEDS [OPTIONS...]], as OUT "0 1 2" --workers 1
#
# First a short run of the search agent, whose model the sub-agents are. The first seed warms up; from its warm-up, so that all are
# the same model, go the other seeds, a single agent of each seed under the same critical steps, and for the first seed the arms
# that each leave a part of the reward out. What was begun before is gone on with. Ends in OUT/swarm.json, swarm.md, swarm.png.
set -euo pipefail
out=$(realpath -m "${1:?a folder for the runs}"); seeds=${2:-0 1 2}; shift $(($# < 2 ? $# : 2))
first=${seeds%% *}
[ -f "$out/search/summary.json" ] ||
  trivium train search --out "$out/search" --warmup 160 --sft-steps 20 --steps 6 --eval-tasks 48 --workers 1
swarm() { trivium train swarm --subagents "$out/search/model" "$@"; }
swarm --seed "$first" --out "$out/swarm-$first" "$@"
warm=(--model "$out/swarm-$first/model-sft" --sft-steps 0)
for seed in $seeds; do
  [ "$seed" = "$first" ] || swarm --seed "$seed" --out "$out/swarm-$seed" "${warm[@]}" "$@"
  trivium train swarm --seed "$seed" --out "$out/alone-$seed" --without swarm "${warm[@]}" "$@"
done
for part in parallel anneal finish; do
  swarm --seed "$first" --out "$out/no-$part-$first" --without $part "${warm[@]}" "$@"
done
python -m benchmarks.swarm "$out"
