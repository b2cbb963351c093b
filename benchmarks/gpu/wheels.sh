#!/bin/sh
# Fills a folder with the wheels that a machine with torch and transformers may lack. Run where there is a registry:
#     benchmarks/gpu/wheels.sh FOLDER
# PYTHON names the interpreter whose pip is used. The wheels are for Linux on x86-64 and Python 3.12, or PYTHON_VERSION.
set -eu

folder=${1:?usage: benchmarks/gpu/wheels.sh FOLDER}
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}

# What forerun and its tests import beyond torch, transformers, NumPy, SciPy, psutil, safetensors and tokenizers, with
# what these packages need themselves. Versions are those of constraints.txt.
names="pydantic pydantic_core annotated-types typing-inspection typing_extensions
gguf PyYAML tqdm requests urllib3 idna certifi charset-normalizer
click rich markdown-it-py mdurl Pygments Jinja2 MarkupSafe
pytest iniconfig pluggy packaging pytest-timeout hypothesis sortedcontainers pathspec"

platforms=""
for version in 2_39 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do
    platforms="$platforms --platform manylinux_${version}_x86_64"
done
mkdir -p "$folder"
# shellcheck disable=SC2086  # lists of words
"$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" --implementation cp \
    $platforms --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform linux_x86_64 \
    --constraint "$root/constraints.txt" --dest "$folder" $names
ls "$folder"
du -sh "$folder"
