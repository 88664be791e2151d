# docker build --target cpu -t trailnotes .         docker build --target cuda -t trailnotes:cuda .
# docker run --rm -it -v "$PWD/runs:/data/runs" trailnotes doctor
# `cuda` has vLLM beside, in an environment of its own as after make vllm, and needs NVIDIA's container toolkit:
# docker run --rm -it --gpus all --shm-size 8g -v "$PWD/runs:/data/runs" trailnotes:cuda train CONFIG --engine.name vllm
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
ENV DEBIAN_FRONTEND=noninteractive PATH=/opt/trailnotes/.venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 trailnotes \
 && install --directory --owner trailnotes /data /data/runs /home/trailnotes/.cache
WORKDIR /opt/trailnotes

FROM base AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc git libc6-dev make python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

# Packages first: this layer lasts until a pyproject.toml or constraints.txt changes.
FROM build AS packages
ARG EXTRAS=train,textworld,openai,plot,web,mcp
ARG WORLDS=webshop
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY packages/worlds/pyproject.toml packages/worlds/README.md packages/worlds/LICENSE packages/worlds/
COPY packages/lab/pyproject.toml packages/lab/README.md packages/lab/LICENSE packages/lab/
COPY src/trailnotes/__init__.py src/trailnotes/
COPY packages/worlds/src/trailnotes_worlds/__init__.py packages/worlds/src/trailnotes_worlds/
COPY packages/lab/src/trailnotes_lab/__init__.py packages/lab/src/trailnotes_lab/
ENV TORCH=torch==2.13.0 INSTALL="-c constraints.txt -e .[${EXTRAS}] -e ./packages/worlds[${WORLDS}] -e ./packages/lab transformers[serving]"
RUN python3 -m venv .venv

FROM packages AS packages-cpu
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# hadolint ignore=SC2086
RUN .venv/bin/pip install ${TORCH_INDEX_URL:+--no-deps --index-url "$TORCH_INDEX_URL"} "$TORCH" \
 && .venv/bin/pip install "$TORCH" $INSTALL

FROM packages AS packages-cuda
ARG VLLM=vllm==0.32.0
# hadolint ignore=SC2086
RUN .venv/bin/pip install "$TORCH" $INSTALL
RUN python3 -m venv .venv-vllm && .venv-vllm/bin/pip install "$VLLM"

FROM base AS cpu
COPY --from=packages-cpu /opt/trailnotes/.venv .venv
COPY . .
USER 1000
WORKDIR /data
ENTRYPOINT ["trailnotes"]
CMD ["--help"]

# vLLM and Triton compile kernels while they run.
FROM build AS cuda
COPY --from=packages-cuda /opt/trailnotes/.venv .venv
COPY --from=packages-cuda /opt/trailnotes/.venv-vllm .venv-vllm
COPY . .
USER 1000
WORKDIR /data
ENTRYPOINT ["trailnotes"]
CMD ["--help"]
