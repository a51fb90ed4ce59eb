"""Progress of reports that are being written, by the id that their page chose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from specmargin.show.explorer.schema import Progress

_KEPT = 64  # jobs whose progress is kept


class Jobs:
    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Progress] = OrderedDict()
        self._lock = Lock()

    def started(self, job: str | None, total: int) -> Callable[[], None]:
        """To be called after each part of the job."""
        if job is None:
            return lambda: None
        with self._lock:
            self._by_id[job] = Progress(total=total)
            while len(self._by_id) > _KEPT:
                self._by_id.popitem(last=False)

        def advance() -> None:
            with self._lock:
                if job in self._by_id:
                    self._by_id[job] = Progress(done=self._by_id[job].done + 1, total=total)

        return advance

    def progress(self, job: str) -> Progress:
        with self._lock:
            return self._by_id.get(job, Progress())
