#!/usr/bin/env bash
# The coder's claims, three seeds each: bash benchmarks/coder.sh OUT [SANDBOX]. Each run goes on where it was stopped.
#   learns     held-out projects: RL over SFT, sampled and greedy, paired (docs/coder.md)
#   feedback   the same steps with textual feedback beside RL: broken calls, reward
#   summaries  tasks of several windows: the policy's own summaries, a long prompted one, the oldest turns cut
set -euo pipefail
out=${1:?"name a folder: bash benchmarks/coder.sh OUT [SANDBOX]"}
sandbox=${2:-ns}
for seed in 0 1 2; do
  trivium train coder --out "$out/learns-$seed" --seed $seed --grades 0 --sandbox "$sandbox"
  trivium train coder --out "$out/feedback-$seed" --seed $seed --grades 0 --feedback 0.5 --sandbox "$sandbox"
  for way in own prompted cut; do
    trivium train coder --out "$out/$way-$seed" --seed $seed --grades 4 --summary $way --sandbox "$sandbox"
  done
done
for claim in learns feedback own prompted cut; do
  trivium eval --compare "$out/$claim-0" "$out/$claim-1" "$out/$claim-2" --json "$out/$claim.json" --out "$out/$claim.md"
done
