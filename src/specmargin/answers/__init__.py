"""What every verb shares: its request, its answer, and what an answer shows."""
