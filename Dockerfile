# The Linux image, for builds with Docker, Podman or buildah. `make images` makes the same image without them.
#
#   make build documents VERSION=v0.1.0
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 -t registry.example.com/directx-nri:v0.1.0 .
FROM scratch
ARG TARGETARCH=amd64
ARG VERSION=unknown
LABEL org.opencontainers.image.title="directx-nri" \
      org.opencontainers.image.description="DirectX GPUs for containers on stock containerd and Kubernetes" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY bin/linux-${TARGETARCH}/ /
COPY out/documents/linux-${TARGETARCH}/ /usr/share/doc/directx-nri/
ENV PATH=/
WORKDIR /
USER 0:0
ENTRYPOINT ["/dxctl"]
CMD ["--help"]
