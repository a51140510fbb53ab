# Images of both programs: docker build --target proxy . and docker build --target controlplane .
# To build the same twice, pin PYTHON to a digest.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS compile
RUN apt-get update
RUN apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY dev requirements.lock pyproject.toml ./
COPY proxy proxy
RUN python dev compile

FROM ${PYTHON} AS build
WORKDIR /opt/graphward
COPY requirements-run.lock ./
RUN python -m venv --without-pip .venv
RUN python -m pip --python .venv/bin/python install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements-run.lock
COPY --from=compile /src/build/compiled ./
COPY controlplane controlplane
RUN .venv/bin/python -m compileall -q -j 0 proxy controlplane

# Nothing in it is writable to the user that it runs as but the volume, so that --read-only costs nothing.
FROM ${PYTHON} AS base
RUN groupadd --gid 10001 graphward
RUN useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/graphward --shell /usr/sbin/nologin graphward
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/graphward
COPY --from=build /opt/graphward /opt/graphward
WORKDIR /opt/graphward
ENV PATH=/opt/graphward/.venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /var/lib/graphward
STOPSIGNAL SIGTERM

FROM base AS controlplane
EXPOSE 8090 8091
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:9091/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "controlplane", "--config", "/etc/graphward/controlplane.toml"]

# Alive, not ready: whatever replaces unhealthy containers must not end a proxy that waits for its rules.
FROM base AS proxy
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:9090/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "proxy", "--config", "/etc/graphward/proxy.toml"]
