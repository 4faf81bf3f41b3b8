#!/usr/bin/env bash
# Take out of an environment with torch, TensorFlow or both, and Horovod, what no training uses: tests, headers, symbols.
#
#   prune.sh ENVIRONMENT
set -euo pipefail

packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# torch's own tests and C++ headers; a fifth of libtorch is names that nothing but a debugger looks up. `import torch`
# insists on torch_shm_manager.
if [[ -d $packages/torch ]]; then
    rm -rf "$packages"/torch/{test,include,share}
    find "$packages/torch/bin" -mindepth 1 ! -name torch_shm_manager -delete
    find "$packages/torch/lib" -name '*test*.so' -delete
    find "$packages/torch/lib" -name '*.so*' -type f -exec strip --strip-unneeded {} +
fi
rm -rf "$packages"/tensorflow/include
# What only compilers use of NVIDIA's packages, which torch with CUDA needs.
rm -rf "$packages"/nvidia/*/include
[[ ! -d $packages/nvidia ]] || find "$packages/nvidia" -name '*.a' -delete
# Tests of others. numpy.testing and torch.testing are no tests and stay.
rm -rf "$packages"/{numpy,sympy,networkx,psutil}/tests "$packages"/{numpy,sympy,networkx}/*/tests
find "$packages/horovod" -name '*.so*' -type f -exec strip --strip-unneeded {} +
if [[ -d $packages/torch ]]; then
    "$1/bin/python" -c 'import os, horovod.torch as hvd; assert hvd.nccl_built() or not os.environ.get("HOROVOD_GPU_OPERATIONS")'
    "$1/bin/python" -c 'import horovod.torch as hvd, torch; assert hvd.gloo_built() and torch.ones(2, 2).mm(torch.ones(2, 2)).sum() == 8'
fi
if [[ -d $packages/tensorflow ]]; then
    "$1/bin/python" -c 'import horovod.tensorflow.keras as hvd, tensorflow as tf; assert hvd.gloo_built() and tf.reduce_sum(tf.ones((2, 2)) @ tf.ones((2, 2))) == 8'
fi
