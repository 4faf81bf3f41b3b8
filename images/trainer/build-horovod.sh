#!/usr/bin/env bash
# Build the wheel of Horovod 0.28.1 for the torch of a Python environment, its TensorFlow, or both; with Gloo, without MPI.
#
#   build-horovod.sh PYTHON DIRECTORY
#
# PYTHON is the environment's interpreter; it must have pip, torch or TensorFlow (2.10 to 2.15), and Horovod's requirements
# (cffi, cloudpickle, packaging, psutil, pyyaml, setuptools<80, wheel). The wheel appears in DIRECTORY when it is whole,
# never in part. Takes one to two minutes on two cores for torch, three for TensorFlow. Used by `make setup` and by the
# trainer's image.
#
# With HOROVOD_GPU_OPERATIONS=NCCL collectives of GPUs' tensors are NCCL's; else they go through the host's memory and Gloo,
# if torch has CUDA. Its compiler is the one of the toolkit in HOROVOD_CUDA_HOME; where that is not set, NVIDIA's wheels for
# torch's release of CUDA serve, with the NCCL that torch has.
set -euo pipefail

version=0.28.1
sum=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
if [[ $# -ne 2 ]]; then
    echo "usage: $0 PYTHON DIRECTORY" >&2
    exit 2
fi
python=$1
directory=$2
here=$(dirname "$(realpath "$0")")
amendment=$here/patches/horovod-$version.patch

if ! command -v "${CXX:-g++}" >/dev/null; then
    echo "No C++ compiler: Horovod is compiled here. Install g++ 9 or newer (Debian: apt-get install g++ make)," >&2
    echo "or name another compiler in CXX." >&2
    exit 1
fi
if ! command -v make >/dev/null; then
    echo "No make: CMake builds Horovod with it. Install it (Debian: apt-get install make)." >&2
    exit 1
fi
if ! command -v patch >/dev/null; then
    echo "No patch: Horovod's sources are amended with it. Install it (Debian: apt-get install patch)." >&2
    exit 1
fi
if command -v cmake >/dev/null; then
    HOROVOD_CMAKE=$(command -v cmake)
else
    echo "No cmake on PATH; installing its wheel into the environment."
    "$python" -m pip install --quiet --only-binary :all: --require-hashes -r <(
        echo cmake==3.31.10 --hash=sha256:2f766bb46367e5e0559fa33184653754bce044583a06014dcaebf8e6dff8a1f1 \
            --hash=sha256:a4a5615f31f692c9b9aa8b365704e4b76172348af6fa40e16fea3f118bb01194 # x86-64, ARM
    )
    HOROVOD_CMAKE=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/cmake
fi
export HOROVOD_CMAKE

# Not inside DIRECTORY: Horovod's CMake files use the source's path as a regular expression, and a + in it (as in
# "torch-2.13.0+cpu") puts the library where nobody finds it.
work=$(mktemp -d /tmp/build-horovod.XXXXXX)
trap 'rm -rf "$work"' EXIT

# --no-build-isolation: even asking the sdist for its metadata runs its setup.py, which needs the environment's packages.
"$python" -m pip download --no-binary horovod --no-deps --no-build-isolation --dest "$work" \
    --require-hashes -r <(echo "horovod==$version --hash=sha256:$sum")
tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
source=$work/horovod-$version

# torch's headers are C++17 since 2.1. Upstream's main branch has the same change (horovod#3998), no release has it.
for file in CMakeLists.txt horovod/torch/CMakeLists.txt; do
    grep -q 'CMAKE_CXX_STANDARD 14' "$source/$file" # set -e: should the source differ, stop here
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' "$source/$file"
done

# A lost rank takes no survivor with it; the reasons stand in the patch. --fuzz=0: should the source differ, stop here.
patch --directory="$source" --strip=1 --fuzz=0 --forward <"$amendment"

has() { "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec(sys.argv[1]) is None)' "$1"; }
if has torch && [[ -z ${HOROVOD_CUDA_HOME:-} && $("$python" -c 'import torch; print(torch.version.cuda)') != None ]]; then
    lock=$here/cuda-build.txt # in the image's build
    [[ -e $lock ]] || lock=$here/../../requirements/cuda-build.txt
    "$python" -m pip install --quiet --target "$work/cuda" --no-deps --require-hashes -r "$lock"
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$here/cuda-home.sh" "$work/cuda-home" "$packages" "$work/cuda"
    export HOROVOD_CUDA_HOME=$work/cuda-home HOROVOD_NCCL_HOME=$work/cuda-home HOROVOD_NCCL_LINK=SHARED
    export CUDA_HOME=$work/cuda-home CUDAToolkit_ROOT=$work/cuda-home PATH=$work/cuda-home/bin:$PATH
fi

libraries=()
export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_MXNET=1
if has torch; then export HOROVOD_WITH_PYTORCH=1; libraries+=(torch/mpi_lib_v2); else export HOROVOD_WITHOUT_PYTORCH=1; fi
if has tensorflow; then export HOROVOD_WITH_TENSORFLOW=1; libraries+=(tensorflow/mpi_lib); else export HOROVOD_WITHOUT_TENSORFLOW=1; fi
if [[ ${#libraries[@]} -eq 0 ]]; then
    echo "Neither torch nor TensorFlow is installed for $python." >&2
    exit 1
fi
# CMake 4 refuses the bundled Gloo's minimum of 2.8.12 unless told otherwise.
export CMAKE_POLICY_VERSION_MINIMUM=3.5
# Else setup.py says -j8 whatever the machine; and a make that called us must not lend its job server.
export MAKEFLAGS="-j$(nproc)"
"$python" -m pip wheel --verbose --no-build-isolation --no-deps --wheel-dir "$work/wheel" "$source"

wheel=$(ls "$work"/wheel/horovod-*.whl)
# setup.py calls a build without its libraries a success. Not grep -q, which may hang up before all of the list is written.
for library in "${libraries[@]}"; do
    if ! "$python" -m zipfile --list "$wheel" | grep "^horovod/$library.*\.so " >/dev/null; then
        echo "The wheel has no horovod/$library*.so; the reason stands in the output above." >&2
        exit 1
    fi
done
mkdir -p "$directory"
cp "$wheel" "$directory/.unfinished"
mv "$directory/.unfinished" "$directory/$(basename "$wheel")"
