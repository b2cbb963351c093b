# forerun serve on CPUs: docker build -t forerun . && docker compose up
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake g++ ninja-build \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
# Wheels of torch for CPUs alone are a quarter of the size: --build-arg PIP_INDEX_URL names their index.
ARG PIP_INDEX_URL
RUN pip wheel --no-cache-dir --wheel-dir /wheels -c /source/constraints.txt "/source[serve]" /source/zoo

FROM python:3.12-slim
# The kernels' threads.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 forerun
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "forerun[serve]" forerun-zoo
USER forerun
WORKDIR /home/forerun
# Models of the hub are kept here.
VOLUME /home/forerun/.cache
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=300s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://localhost:8000/health', timeout=5)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["forerun", "serve", "--host", "0.0.0.0"]
CMD ["--model", "zoo", "--api-key-file", "/run/secrets/api_keys"]
