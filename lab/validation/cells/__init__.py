"""`simulate` against cells that a server was recorded in: a trace of requests, played on one contestant."""
