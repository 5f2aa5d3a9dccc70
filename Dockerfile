# A static binary in an image that holds nothing else.
#
#   docker build --build-arg VERSION=$(git describe --tags --always) -t sluice .
#   docker run -p 8080:8080 -v $PWD/gateway.acl:/etc/sluice/gateway.acl:ro sluice

FROM golang:1.27.3-bookworm AS build
ARG VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /sluice ./cmd/sluice

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /sluice /sluice
# Not root: entrypoints use ports from 1024 on, or the runtime allows lower ones.
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["/sluice"]
CMD ["--config", "/etc/sluice/gateway.acl"]
