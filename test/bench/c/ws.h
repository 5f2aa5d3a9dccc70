/*
 * ws.h: the one WebSocket handshake and message size that both ends of the bench know. The
 * key is that of RFC 6455 §1.3, so that its answer needs no SHA-1.
 */
#ifndef BENCH_WS_H
#define BENCH_WS_H

#define ECHO_BYTES 32

#define WS_REQUEST "GET /ws HTTP/1.1\r\nHost: bench.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" \
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
#define WS_ANSWER "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

#endif
