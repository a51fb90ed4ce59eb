"""The SGLang plug-in. Import `params` only where SGLang is installed."""
