# An official image of vLLM with the plug-in. From the root of the repository, after `python -m build --wheel`:
#
#   docker build --file deploy/vllm.Dockerfile --tag vllm-specmargin .
#
# On CPUs: --build-arg IMAGE=vllm/vllm-openai-cpu:v0.32.0
ARG IMAGE=vllm/vllm-openai:v0.32.0
FROM ${IMAGE}
# What vLLM has installed is a constraint: packages may be added, and none of its own (PyTorch, NumPy, Numba) can change.
RUN --mount=type=bind,source=dist,target=/dist python3 -m pip list --format=freeze >/tmp/vllm.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/vllm.txt "$(ls /dist/specmargin-*.whl)[live]" \
    && rm /tmp/vllm.txt && specmargin --version
