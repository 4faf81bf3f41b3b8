#!/usr/bin/env bash
# Take out of an environment with torch and Horovod what no training uses: tests, headers, symbols.
#
#   prune.sh ENVIRONMENT
set -euo pipefail

packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# torch's own tests and C++ headers. `import torch` insists on torch_shm_manager.
rm -rf "$packages"/torch/{test,include,share}
find "$packages/torch/bin" -mindepth 1 ! -name torch_shm_manager -delete
find "$packages/torch/lib" -name '*test*.so' -delete
# Tests of others. numpy.testing and torch.testing are no tests and stay.
rm -rf "$packages"/{numpy,sympy,networkx,psutil}/tests "$packages"/{numpy,sympy,networkx}/*/tests
# A fifth of libtorch is names that nothing but a debugger looks up.
find "$packages/horovod" "$packages/torch/lib" -name '*.so*' -type f -exec strip --strip-unneeded {} +
"$1/bin/python" -c 'import horovod.torch as hvd, torch; assert hvd.gloo_built() and torch.ones(2, 2).mm(torch.ones(2, 2)).sum() == 8'
