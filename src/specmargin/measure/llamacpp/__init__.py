"""Times steps of llama.cpp: those of a running `llama-server`, or of a program that is started for it."""
