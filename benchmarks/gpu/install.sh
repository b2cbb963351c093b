#!/bin/sh
# Installs forerun from this tree, without a network:
#     benchmarks/gpu/install.sh WHEELS
# WHEELS is the folder that wheels.sh has filled. What the machine has already, torch above all, stays as it is. It may
# be run again. PYTHON names the interpreter; PIP_OPTIONS are handed to pip.
set -eu

wheels=$(cd "${1:?usage: benchmarks/gpu/install.sh WHEELS}" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
options=${PIP_OPTIONS:-}
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The lower bounds are those of pyproject.toml.
# shellcheck disable=SC2086  # a list of words
"$python" -m pip install --quiet $options --no-index --find-links "$wheels" \
    "pydantic>=2.11" "gguf>=0.19" "click>=8.1" "rich>=13.9" "jinja2>=3.1.6" \
    "pytest>=8.3" "pytest-timeout>=2.3" "hypothesis>=6.100" "pathspec" "packaging"
# shellcheck disable=SC2086
"$python" -m pip install --quiet $options --no-index --no-build-isolation --no-deps "$root"
# The trained models come along where the tree has them.
if [ -f "$root/zoo/pyproject.toml" ] && "$python" -c "import hatchling" 2>/dev/null; then
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet $options --no-index --no-build-isolation --no-deps "$root/zoo"
fi
cd /
"$python" - <<'END'
from importlib.metadata import PackageNotFoundError, version

import torch

from forerun import _native

names = ("forerun", "forerun-zoo", "torch", "transformers", "pydantic", "gguf", "click", "rich", "pytest")
for name in names:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "not installed")
print("kernels", _native.kernels.level() if _native.AVAILABLE else f"not built: {_native.REASON}")
print("CUDA", torch.cuda.get_device_name() if torch.cuda.is_available() else "not available")
END
