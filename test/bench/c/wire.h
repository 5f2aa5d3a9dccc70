/*
 * wire.h: an incremental reader of HTTP/1.1 messages, for both ends of the bench.
 *
 * It is fed whatever a read brought and finds the end of the message by
 * Content-Length, by chunked framing or by the end of the connection. It trusts
 * its peer no further than memory safety asks: the bench talks to proxies that
 * are under test for speed, not for strictness.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEAD_MAX 8192

enum msg_state { MSG_HEAD, MSG_LENGTH, MSG_SIZE, MSG_CHUNK, MSG_CHUNK_END, MSG_TRAILER, MSG_TO_EOF, MSG_DONE };

struct msg {
	enum msg_state state;
	int response;    /* else a request */
	int status;      /* of a response */
	int wants_close; /* Connection: close was said */
	int line;        /* bytes of the current trailer or size line */
	long left;       /* bytes left of the body or of the chunk */
	long body;       /* bytes of the body so far, framing left out */
	int headn;
	char head[HEAD_MAX + 1];
};

/* Called with each piece of the body. */
typedef void (*msg_body)(void *arg, const char *p, long n);

static inline void msg_reset(struct msg *m, int response)
{
	m->state = MSG_HEAD;
	m->response = response;
	m->status = m->wants_close = m->line = 0;
	m->left = m->body = 0;
	m->headn = 0;
}

/* Reads the fields that matter for framing. The head is complete and ends with a NUL. */
static inline int msg_head(struct msg *m)
{
	long length = -1;
	int chunked = 0;
	if (m->response) {
		if (strncmp(m->head, "HTTP/1.", 7) != 0 || m->headn < 12)
			return -1;
		m->status = atoi(m->head + 9);
	}
	for (char *p = strchr(m->head, '\n'); p != NULL && p[1] != '\r'; p = strchr(p, '\n')) {
		p++;
		if (strncasecmp(p, "content-length:", 15) == 0)
			length = atol(p + 15);
		else if (strncasecmp(p, "transfer-encoding:", 18) == 0)
			chunked = 1;
		else if (strncasecmp(p, "connection:", 11) == 0) {
			for (p += 11; *p == ' '; p++)
				;
			m->wants_close = strncasecmp(p, "close", 5) == 0;
		}
	}
	if (chunked) {
		m->state = MSG_SIZE;
		m->left = 0;
	} else if (length > 0) {
		m->state = MSG_LENGTH;
		m->left = length;
	} else if (length == 0 || !m->response) {
		m->state = MSG_DONE;
	} else {
		m->state = MSG_TO_EOF;
	}
	return 0;
}

/* Takes head bytes until the empty line; returns the bytes taken or -1. */
static inline long msg_feed_head(struct msg *m, const char *p, long n)
{
	int old = m->headn;
	long take = n < HEAD_MAX - old ? n : HEAD_MAX - old;
	memcpy(m->head + old, p, (size_t)take);
	int from = old > 3 ? old - 3 : 0;
	char *end = memmem(m->head + from, (size_t)(old + take - from), "\r\n\r\n", 4);
	if (end == NULL) {
		m->headn = old + (int)take;
		return m->headn >= HEAD_MAX ? -1 : take;
	}
	m->headn = (int)(end + 4 - m->head);
	m->head[m->headn] = 0;
	if (msg_head(m) != 0)
		return -1;
	return m->headn - old;
}

/* One byte of a chunk-size line, of the line end after a chunk, or of the trailer section. */
static inline int msg_feed_framing(struct msg *m, char c)
{
	switch (m->state) {
	case MSG_SIZE:
		if (isxdigit((unsigned char)c) && m->left < (1L << 40)) {
			m->left = m->left * 16 + (isdigit((unsigned char)c) ? c - '0' : (c | 32) - 'a' + 10);
			return 0;
		}
		if (c == '\n') {
			m->state = m->left > 0 ? MSG_CHUNK : MSG_TRAILER;
			m->line = 0;
			return 0;
		}
		return c == '\r' ? 0 : -1;
	case MSG_CHUNK_END:
		if (c == '\n') {
			m->state = MSG_SIZE;
			m->left = 0;
			return 0;
		}
		return c == '\r' ? 0 : -1;
	default:
		if (c == '\n') {
			if (m->line == 0)
				m->state = MSG_DONE;
			m->line = 0;
		} else if (c != '\r') {
			m->line++;
		}
		return 0;
	}
}

/*
 * Feeds n bytes; stops after the end of the message. Returns the bytes taken, or -1
 * when they are no HTTP. The message is complete when m->state is MSG_DONE.
 */
static inline long msg_feed(struct msg *m, const char *p, long n, msg_body body, void *arg)
{
	long used = 0;
	while (used < n && m->state != MSG_DONE) {
		long k = n - used;
		switch (m->state) {
		case MSG_HEAD:
			if ((k = msg_feed_head(m, p + used, k)) < 0)
				return -1;
			break;
		case MSG_LENGTH:
		case MSG_CHUNK:
		case MSG_TO_EOF:
			if (m->state != MSG_TO_EOF && k > m->left)
				k = m->left;
			if (body != NULL)
				body(arg, p + used, k);
			m->body += k;
			m->left -= k;
			if (m->left == 0 && m->state == MSG_LENGTH)
				m->state = MSG_DONE;
			else if (m->left == 0 && m->state == MSG_CHUNK)
				m->state = MSG_CHUNK_END;
			break;
		default:
			if (msg_feed_framing(m, p[used]) != 0)
				return -1;
			k = 1;
		}
		used += k;
	}
	return used;
}

#endif
