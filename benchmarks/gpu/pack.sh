#!/bin/sh
# Collect what a GPU machine without network lacks: wheels for Python 3.12 on x86-64 Linux.
#
#     benchmarks/gpu/pack.sh [FOLDER]                                        (default benchmarks/.wheels)
#
# There, beside a checkout:
#
#     python3 -m pip install --no-index --no-deps --target /tmp/site FOLDER/*.whl
#     PYTHONPATH=/tmp/site python3 -m benchmarks.gpu
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
folder=${1:-$here/../.wheels}
python=$root/.venv/bin/python
test -x "$python" || python=python3
mkdir -p "$folder"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --implementation cp --python-version 3.12 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any \
    --dest "$folder" --requirement "$here/requirements.txt" --constraint "$root/constraints.txt"
# DeepSpeed has no wheel of its own; without operators one fits every Python. Its setup imports torch
DS_BUILD_OPS=0 "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$folder" --constraint "$root/constraints.txt" deepspeed
du -sh "$folder"
