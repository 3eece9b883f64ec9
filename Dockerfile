# Two images: a small one for CPUs, and one for NVIDIA GPUs.
#   docker build --target cpu -t factformer:cpu .
#   docker build --target cuda -t factformer:cuda .
#   docker run --rm -v "$PWD:/work" factformer:cpu demo --out demo
#   docker run --rm --gpus all -v "$PWD:/work" factformer:cuda train kolmogorov --data data --device cuda
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY src ./src
COPY zoo/index.json ./zoo/index.json
COPY zoo/kolmogorov-128 ./zoo/kolmogorov-128
COPY zoo/kolmogorov-64-small ./zoo/kolmogorov-64-small
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim AS cpu
COPY constraints.txt /opt/constraints.txt
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" \
    && grep -v "^torch==" /opt/constraints.txt > /opt/others.txt \
    && wheel="$(ls /dist/*.whl)" \
    && pip install --no-cache-dir -c /opt/others.txt "${wheel}[onnx,serve,xarray]" \
    && rm -rf /dist \
    && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["factformer"]
CMD ["--help"]

# Triton compiles its launchers with a C compiler; CUDA itself comes with torch from the package index.
FROM python:3.12-slim AS cuda
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /opt/constraints.txt
COPY --from=wheel /dist /dist
RUN wheel="$(ls /dist/*.whl)" \
    && pip install --no-cache-dir -c /opt/constraints.txt "${wheel}[onnx,serve,xarray]" \
    && rm -rf /dist \
    && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["factformer"]
CMD ["--help"]
