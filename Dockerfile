# Images of both programs: `docker build --target proxy .` and `docker build --target controlplane .`
# For a reproducible build, pin PYTHON to a digest and pass --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct).
ARG PYTHON=python:3.11-slim-bookworm

# Builds the wheel with the compiled data path, for the Python of the images.
FROM ${PYTHON} AS wheel
ARG SOURCE_DATE_EPOCH
RUN apt-get update
RUN apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY dev requirements.lock pyproject.toml setup.py README.md LICENSE NOTICE ./
COPY licenses licenses
COPY conf conf
COPY graphward graphward
COPY controlplane controlplane
COPY proxy proxy
RUN python dev compile
RUN GRAPHWARD_COMPILED=/src/build/compiled .venv/bin/python -m pip wheel --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir /wheel .

FROM ${PYTHON} AS build
WORKDIR /opt/graphward
COPY requirements-run.lock ./
COPY --from=wheel /wheel /wheel
RUN python -m venv --without-pip venv
RUN python -m pip --python venv/bin/python install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes -r requirements-run.lock
RUN python -m pip --python venv/bin/python install --no-cache-dir --disable-pip-version-check --no-deps /wheel/graphward-*.whl

# The user of the image can write only to the volume, so the image also runs with --read-only.
FROM ${PYTHON} AS base
RUN groupadd --gid 10001 graphward
RUN useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/graphward --shell /usr/sbin/nologin graphward
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/graphward
COPY --from=build /opt/graphward /opt/graphward
WORKDIR /opt/graphward
ENV PATH=/opt/graphward/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /var/lib/graphward
STOPSIGNAL SIGTERM

FROM base AS controlplane
EXPOSE 8090 8091
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:9091/healthz', timeout=4)"]
ENTRYPOINT ["graphward", "--config", "/etc/graphward/controlplane.toml"]

# The check asks for liveness, not readiness: a proxy that waits for its rules must not be replaced as unhealthy.
FROM base AS proxy
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:9090/healthz', timeout=4)"]
ENTRYPOINT ["graphward-proxy", "--config", "/etc/graphward/proxy.toml"]
