"""Time between tokens of served models, as third parties measured it."""
