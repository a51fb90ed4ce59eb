"""The web page: FastAPI on loopback. It holds no cost model of its own; every number comes from the one the verbs use."""
