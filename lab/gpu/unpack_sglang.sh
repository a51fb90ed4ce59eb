#!/usr/bin/env bash
# On the GPU machine, after vLLM's packages lie in TARGET/site:
#   unpack_sglang.sh PARTS_FOLDER TARGET REPOSITORY     then: source TARGET/sglang.env
set -euo pipefail
PARTS=$1; T=$2; REPOSITORY=$3; S=$T/sglang; mkdir -p "$S"
cat "$PARTS"/part-* | tar xf - -C "$T"
ls "$T"/sglang-wheels/*.whl | xargs -P 16 -I{} python3 -m zipfile -e {} "$S"
# SGLang imports these two names of IPython for notebooks only.
mkdir -p "$S/IPython"; : > "$S/IPython/__init__.py"; printf 'HTML = display = print\n' > "$S/IPython/display.py"
# Imported for DeepSeek's attention when graphs are captured, whatever the model; nothing of it is called here.
mkdir -p "$S/deep_gemm"; : > "$S/deep_gemm/__init__.py"
# The entry points of the working tree, as an installed package would have them.
INFO=$S/specmargin-0.dist-info; mkdir -p "$INFO"
printf 'Metadata-Version: 2.1\nName: specmargin\nVersion: 0\n' > "$INFO/METADATA"
printf '[sglang.srt.plugins]\nspecmargin = specmargin.live.sglang.plugin:register\n' > "$INFO/entry_points.txt"
NVCC=$(command -v nvcc || ls -d /usr/local/cuda*/bin/nvcc | tail -1)
NINJA=$(command -v ninja || find "$T/site" "$S" -path '*scripts/ninja' -o -path '*ninja/data/bin/ninja' | head -1)
chmod +x "$NINJA"
sed 's/ PYTHONPATH=[^ ]*//' "$T/env" > "$T/sglang.env"
cat >> "$T/sglang.env" <<EOF
export PYTHONPATH=$S:$T/site:$REPOSITORY/src:$REPOSITORY CUDA_HOME=$(dirname "$(dirname "$NVCC")")
export PATH=$(dirname "$NINJA"):$(dirname "$NVCC"):\$PATH
export SGLANG_CACHE_DIR=$T/sglang-cache SGLANG_JIT_CACHE_DIR=$T/sglang-cache/jit SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE=0
EOF
echo "SGLang lies in $S; nvcc $NVCC, ninja $NINJA"
