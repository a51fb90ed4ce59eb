"""Studies of policies on recorded rounds."""
