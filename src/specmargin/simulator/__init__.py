"""A serving engine under a load: workload, engine model, policies, results, sweeps."""
