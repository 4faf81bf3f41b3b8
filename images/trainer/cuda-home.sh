#!/usr/bin/env bash
# Lay out a CUDA toolkit with NCCL, as compilers look for one, of NVIDIA's wheels for Python.
#
#   cuda-home.sh DIRECTORY FOLDER...
#
# The FOLDERs are where packages are installed: those of torch (headers, libraries, NCCL) and of the lock cuda-build.txt
# (nvcc). Theirs are libraries under the names that programs are loaded with (libcudart.so.13); compilers want libcudart.so.
set -euo pipefail
shopt -s nullglob

directory=$1
shift
mkdir -p "$directory/lib64"
ln -s lib64 "$directory/lib"
for folder in "$@"; do
    for part in "$folder"/nvidia/cu[0-9]*/{bin,include,nvvm} "$folder"/nvidia/nccl/include; do
        [[ -d $part ]] || continue
        # bin is copied: nvcc, and CMake, look for the rest beside where it really lies. The rest are links.
        [[ $part == */bin ]] && how=--no-dereference || how=--symbolic-link
        mkdir -p "$directory/$(basename "$part")"
        cp --recursive --force "$how" "$(realpath "$part")"/. "$directory/$(basename "$part")"
    done
    for library in "$folder"/nvidia/{cu[0-9]*,nccl}/lib/lib*.{a,so.*}; do
        name=$(basename "$library")
        ln -sf "$(realpath "$library")" "$directory/lib64/$name"
        [[ $name == *.a ]] || ln -sf "$name" "$directory/lib64/${name%%.so.*}.so"
    done
done
if [[ ! -x $directory/bin/nvcc || ! -e $directory/lib64/libnccl.so ]]; then
    echo "No nvcc and NCCL in $*: torch is one without CUDA, or of another release of it than the lock cuda-build.txt." >&2
    exit 1
fi
