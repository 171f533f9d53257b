# Builds the wheel with its dependencies, and runs the daemon as an unprivileged user on a read-only root file system:
#   docker build -t warpseal .
#   docker run --read-only -p 8080:8080 -v warpseal:/data -v ./config.json:/etc/warpseal/config.json:ro warpseal
FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/warpseal \
    && /opt/warpseal/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt '.[otel]' \
    && /opt/warpseal/bin/python -m compileall -q /opt/warpseal

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin warpseal \
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
