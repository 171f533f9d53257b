# Builds the wheel with its dependencies, and runs the daemon as an unprivileged user on a read-only root file system:
#   docker build --build-arg REVISION=$(git rev-parse HEAD) --build-arg VERSION=0.2.0 -t warpseal .
#   docker run --read-only -p 8080:8080 -v warpseal:/data -v ./config.json:/etc/warpseal/config.json:ro warpseal
FROM python:3.13-slim AS build
ARG REVISION
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# An environment without pip, which the pip of the base fills. Symbols of libraries, sources of generated modules, and the
# editor of Swagger, which /docs does not use, are half of what the packages bring.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends binutils > /dev/null \
    && if [ -n "$REVISION" ]; then echo "$REVISION" > src/warpseal/revision.txt; fi \
    && python -m venv --without-pip /opt/warpseal \
    && pip --python /opt/warpseal/bin/python install --no-cache-dir --disable-pip-version-check \
        --constraint constraints.txt '.[otel]' \
    && find /opt/warpseal -name '*.so*' -type f -exec strip --strip-unneeded {} + \
    && find /opt/warpseal \( -name '*.map' -o -name '*.c' -o -path '*swagger-editor*' \) -delete \
    && /opt/warpseal/bin/python -m compileall -q /opt/warpseal

FROM python:3.13-slim
ARG REVISION
ARG VERSION
ARG SOURCE
LABEL org.opencontainers.image.title="Warpseal" \
    org.opencontainers.image.description="Signature aggregation for Avalanche Warp messages" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.source="$SOURCE" \
    org.opencontainers.image.licenses="Apache-2.0"
# Nothing is installed in a running container.
RUN pip uninstall --yes --quiet --root-user-action ignore pip \
    && useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin warpseal \
    && mkdir /data && chown warpseal:warpseal /data && chmod 0700 /data
COPY --from=build /opt/warpseal /opt/warpseal
ENV PATH=/opt/warpseal/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=2 \
    WARPSEAL_DATA_DIR=/data WARPSEAL_CONFIG_FILE=/etc/warpseal/config.json
USER warpseal
VOLUME /data
EXPOSE 8080 8081
# The daemon finishes requests in flight within grace-period-seconds (25).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["warpseal", "health"]
ENTRYPOINT ["warpseal"]
CMD ["serve"]
