#!/bin/sh
# From the accept length in a server's log to flags, a policy file and the command that starts the server.
#
#   sh examples/plan_and_serve.sh
set -eu

# vLLM logs "Mean acceptance length: 2.61" (tokens per round, bonus token included); this server drafted 3 tokens.
set -- qwen3-30b-a3b --gpu h200 --drafter eagle --acceptance length:2.61@3 --prices laws

# 1. For a script, the answer is one word: speculate, speculate-below-capacity, uncertain, do-not-speculate, …
advice=$(specmargin plan "$@" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["advice"])')
echo "advice: $advice"
case $advice in
    speculate*) ;;
    *) exit 1 ;; # leave the server as it is
esac

# 2. For a person, the first lines are the verdict.
specmargin plan "$@" | head -3

# 3. The policy file of the plug-in, and the server that reads it. With --acceptance BANK or a profile that has confidences,
#    drafts are gated too (docs/guide/vllm.md).
specmargin plan "$@" --policy mine.policy.json --force | tail -1
