#!/usr/bin/env bash
# What the swarm's claims stand on: bash benchmarks/swarm.sh OUT [SEEDS]
#
# For each seed the swarm, and the same model as a single agent under the same critical steps; then, from the swarm's own warm-up,
# the arms that each leave a part of the reward out. What was begun before is gone on with. Ends in OUT/swarm.json, swarm.md, swarm.png.
set -euo pipefail
out=${1:?a folder for the runs}; seeds=${2:-0 1 2}
for seed in $seeds; do
  trivium train swarm --seed "$seed" --out "$out/swarm-$seed"
  trivium train swarm --seed "$seed" --out "$out/alone-$seed" --without swarm
  for part in parallel finish anneal; do
    trivium train swarm --seed "$seed" --out "$out/no-$part-$seed" --without $part --model "$out/swarm-$seed/model-sft" --sft-steps 0
  done
  python -m benchmarks.swarm "$out"
done
