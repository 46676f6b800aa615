# An image that trains on NVIDIA GPUs:
#   docker build -t dape-neox .
#   docker run --rm -it --gpus all --shm-size 8g -v "$PWD/data:/home/neox/dape-neox/data" dape-neox
# The development image has nvcc, which DeepSpeed needs where it compiles its own operations at run time.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${CUDA_IMAGE}

RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        build-essential git libaio-dev openssh-client pdsh python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# A user without root's rights; the base image may already have one with the usual number.
RUN useradd --create-home --shell /bin/bash neox
USER neox
WORKDIR /home/neox/dape-neox

# The requirements alone first, so that a change of the code does not install everything again. PIP_ARGS goes to each pip install.
ARG PIP_ARGS=""
ENV VIRTUAL_ENV=/home/neox/venv
ENV PATH="${VIRTUAL_ENV}/bin:${PATH}"
COPY --chown=neox requirements requirements
RUN python3 -m venv "${VIRTUAL_ENV}" \
    && pip install --no-cache-dir ${PIP_ARGS} --upgrade pip setuptools wheel \
    && pip install --no-cache-dir ${PIP_ARGS} "$(grep '^torch==' requirements/requirements.txt)" \
    && pip install --no-cache-dir ${PIP_ARGS} --no-build-isolation -r requirements/requirements.txt \
    && pip install --no-cache-dir ${PIP_ARGS} -r requirements/requirements-wandb.txt -r requirements/requirements-tensorboard.txt

COPY --chown=neox . .
CMD ["bash"]
