# The web page of `specmargin explore`. From the root of the repository:
#
#   docker build --file deploy/explorer.Dockerfile --tag specmargin-explorer .
#   docker run --rm --publish 127.0.0.1:8642:8642 specmargin-explorer
#
# The second prints an address with a token: open it with `localhost` as its host.
FROM python:3.13.9-slim-trixie AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/specmargin \
    && /opt/specmargin/bin/pip install --no-cache-dir '.[page]'

FROM python:3.13.9-slim-trixie
COPY --from=build /opt/specmargin /opt/specmargin
# No home and no shell. The cache of compiled functions is the only thing that is written.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin specmargin
ENV NUMBA_CACHE_DIR=/tmp/numba PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8642
# A server that asks for its token is alive.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["/opt/specmargin/bin/python", "-c", \
    "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8642, timeout=4); c.request('GET', '/'); exit(c.getresponse().status != 401)"]
ENTRYPOINT ["/opt/specmargin/bin/specmargin", "explore", "--host", "0.0.0.0", "--no-browser"]
