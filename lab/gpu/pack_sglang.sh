#!/usr/bin/env bash
# Packs SGLang for a GPU machine without network that already has vLLM's packages (PyTorch 2.13, Triton 3.7) and nvcc.
#   pack_sglang.sh OUT_FOLDER     OUT_FOLDER/s00/part-00, s01/part-01, …: about 105 MB in parts of 58 MB
# Python 3.12 on x86-64; attention by Triton, so the kernels of FlashAttention 3 (340 MB) stay at home.
set -euo pipefail
OUT=$1; WORK=$(mktemp -d); mkdir -p "$WORK/sglang-wheels" "$OUT"
PLATFORMS=(); for p in 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_5; do PLATFORMS+=(--platform manylinux_${p}_x86_64); done
PLATFORMS+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform linux_x86_64)
# SGLang 0.5.21 is the newest release for PyTorch 2.13. Only what it imports to serve text and vLLM's packages lack.
cat > "$WORK/req" <<EOF
sglang==0.5.21
sglang-kernel==0.4.7
flashinfer_python==0.6.18
transformers==5.12.1
tokenizers==0.22.2
huggingface_hub==1.33.0
hf-xet==1.8.0
compressed-tensors==0.18.0
openai==2.6.1
openai-harmony==0.0.4
xgrammar==0.2.7
outlines==0.1.11
outlines_core==0.1.26
apache-tvm-ffi==0.1.11
distro==1.9.0
easydict==1.13
gguf==0.19.0
blobfile==3.0.0
diskcache==5.6.3
nest-asyncio==1.6.0
torch-memory-saver==0.0.10
kernels==0.14.1
tomlkit==0.15.2
orjson==3.13.0
xxhash==4.1.0
zstandard==0.25.0
numba==0.65.1
cuda-python==13.4.4
cuda-core==1.2.2
nvidia-cutlass-dsl==4.6.2
EOF
python3 -m pip download -q --no-deps -d "$WORK/sglang-wheels" -r "$WORK/req" --python-version 3.12 --only-binary=:all: \
    "${PLATFORMS[@]}" --implementation cp --abi cp312 --abi abi3 --abi none
cd "$WORK/sglang-wheels"
zip -qd sglang_kernel-*.whl 'sgl_kernel/flash_ops*' 'sgl_kernel/sm100/*' 'sgl_kernel/flashmla_ops*' 'sgl_kernel/infllm_ops*'
zip -qd sglang-0*.whl 'sglang/multimodal_gen/*' 'sglang/test/*'
cd - > /dev/null
tar cf - -C "$WORK" sglang-wheels | split -b 58000000 -d - "$WORK/part-"
for part in "$WORK"/part-*; do
    number=${part##*-}; mkdir -p "$OUT/s$number"; mv "$part" "$OUT/s$number/"
done
rm -rf "$WORK"; ls -d "$OUT"/s[0-9][0-9]
