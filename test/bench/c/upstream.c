/*
 * upstream PORT: the cheapest backend that still behaves like one.
 *
 *   /       42 bytes of JSON (also the answer to every request with a body)
 *   /big    102400 bytes
 *   /sse    32 events of a chat completion, one send each, then the end
 *   /paced  one event each 33.33 ms until the client leaves; each carries the
 *           monotonic time at which it was sent ("t":"nanoseconds")
 *   /echo   the request head as it arrived
 *   /ws     a WebSocket that sends the payload of each frame back
 *
 * On PORT+1 it sends the bytes of a connection back, on PORT+2 (UDP) those of a datagram.
 *
 * One thread, one epoll set, no allocation after a connection is open. It prints
 * "ready" once it listens and ends when its standard input does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"
#include "ws.h"

#define EVENTS 32
#define BIG 102400
#define PACE_NS 33333333L

struct piece {
	const char *p;
	size_t n;
};

struct conn {
	int fd;
	int paced, closed;
	int echoes;   /* sends bytes back; no HTTP */
	int ws, part; /* a WebSocket, and the bytes of the next frame that have come */
	int blocked;              /* waits for room in the socket buffer */
	const struct piece *next; /* pieces of the answer still to send */
	int pieces;
	size_t offset; /* into the first of them */
	long due;      /* next paced event */
	struct conn *after;
	struct piece echo;
	struct msg req;
};

static int epfd;
static struct conn *due_first, *due_last; /* in order of due, as every step is the same */
static struct piece small_answer[1], big_answer[1], sse_answer[EVENTS + 1], ws_answer[1];

static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static struct piece keep(const char *text, size_t n)
{
	char *copy = malloc(n);
	if (copy == NULL)
		exit(1);
	memcpy(copy, text, n);
	return (struct piece){copy, n};
}

static void prepare_answers(void)
{
	static char text[BIG + 512];
	int n = snprintf(text, sizeof text,
		"HTTP/1.1 200 OK\r\nServer: up\r\nDate: Mon, 30 Nov 2026 02:12:55 GMT\r\n"
		"Content-Type: application/json\r\nContent-Length: 42\r\n\r\n%-42s",
		"{\"status\":\"ok\",\"message\":\"hello, world!\"}");
	small_answer[0] = keep(text, (size_t)n);

	n = snprintf(text, sizeof text,
		"HTTP/1.1 200 OK\r\nServer: up\r\nDate: Mon, 30 Nov 2026 02:12:55 GMT\r\n"
		"Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", BIG);
	memset(text + n, 'x', BIG);
	big_answer[0] = keep(text, (size_t)n + BIG);

	ws_answer[0] = keep(WS_ANSWER, sizeof WS_ANSWER - 1);

	n = snprintf(text, sizeof text,
		"HTTP/1.1 200 OK\r\nServer: up\r\nDate: Mon, 30 Nov 2026 02:12:55 GMT\r\n"
		"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n");
	sse_answer[0] = keep(text, (size_t)n);
	for (int i = 0; i < EVENTS; i++) {
		char event[256];
		int last = i == EVENTS - 1;
		int k = last ? snprintf(event, sizeof event, "data: [DONE]\n\n")
			: snprintf(event, sizeof event,
				"data: {\"id\":\"chatcmpl-abc123\",\"object\":\"chat.completion.chunk\",\"created\":1764468000,"
				"\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"tok%02d\"}}]}\n\n", i);
		n = snprintf(text, sizeof text, "%x\r\n%s\r\n%s", (unsigned)k, event, last ? "0\r\n\r\n" : "");
		sse_answer[i + 1] = keep(text, (size_t)n);
	}
}

static void watch(struct conn *c, int op, unsigned events)
{
	struct epoll_event e = {.events = events, .data.ptr = c};
	epoll_ctl(epfd, op, c->fd, &e);
}

static void conn_close(struct conn *c)
{
	close(c->fd);
	free((void *)c->echo.p);
	c->echo.p = NULL;
	c->closed = 1;
	if (!c->paced) /* else the pace queue still holds it */
		free(c);
}

/* Sends what is left of the answer. 0: done or waiting for room, -1: the connection is of no more use. */
static int conn_flush(struct conn *c)
{
	while (c->pieces > 0) {
		ssize_t w = send(c->fd, c->next->p + c->offset, c->next->n - c->offset, MSG_NOSIGNAL);
		if (w < 0 && errno == EAGAIN) {
			if (!c->blocked)
				watch(c, EPOLL_CTL_MOD, EPOLLOUT);
			c->blocked = 1;
			return 0;
		}
		if (w < 0)
			return -1;
		c->offset += (size_t)w;
		if (c->offset == c->next->n) {
			c->offset = 0;
			c->next++;
			c->pieces--;
		}
	}
	if (c->blocked)
		watch(c, EPOLL_CTL_MOD, EPOLLIN);
	c->blocked = 0;
	return c->req.wants_close && !c->paced ? -1 : 0;
}

static void pace_push(struct conn *c)
{
	c->after = NULL;
	if (due_last != NULL)
		due_last->after = c;
	else
		due_first = c;
	due_last = c;
}

static struct piece echo_answer(const struct msg *m)
{
	static char text[HEAD_MAX + 256];
	int n = snprintf(text, sizeof text,
		"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", m->headn, m->head);
	return keep(text, (size_t)n);
}

/* Answers the request that has just been read. */
static int conn_answer(struct conn *c)
{
	const char *path = strchr(c->req.head, ' ');
	path = path != NULL ? path + 1 : "/";
	c->next = small_answer;
	c->pieces = 1;
	c->offset = 0;
	if (strncmp(path, "/big", 4) == 0) {
		c->next = big_answer;
	} else if (strncmp(path, "/sse", 4) == 0) {
		c->next = sse_answer;
		c->pieces = EVENTS + 1;
	} else if (strncmp(path, "/ws", 3) == 0) {
		c->next = ws_answer;
		c->ws = 1;
	} else if (strncmp(path, "/echo", 5) == 0) {
		free((void *)c->echo.p);
		c->echo = echo_answer(&c->req);
		c->next = &c->echo;
	} else if (strncmp(path, "/paced", 6) == 0 && !c->paced) {
		c->next = sse_answer; /* only its head */
		c->paced = 1;
		c->due = now_ns() + PACE_NS;
		pace_push(c);
	}
	return conn_flush(c);
}

/*
 * Answers each frame that has come whole. Only frames of the bench's own length and mask are
 * known, so what comes back does not depend on what came.
 */
static int ws_readable(struct conn *c, ssize_t n)
{
	static const char answer[ECHO_BYTES + 2] = {(char)0x82, ECHO_BYTES};
	enum { FRAME = 6 + ECHO_BYTES };
	c->part += (int)n;
	for (; c->part >= FRAME; c->part -= FRAME)
		if (send(c->fd, answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer)
			return -1;
	return 0;
}

static void conn_readable(struct conn *c)
{
	static char buf[65536];
	ssize_t r = recv(c->fd, buf, sizeof buf, 0);
	if (r < 0 && errno == EAGAIN)
		return;
	if (r <= 0) {
		conn_close(c);
		return;
	}
	if (c->echoes || c->ws) { /* a client sends its next message when it has the answer, so there is room */
		int lost = c->ws ? ws_readable(c, r) : send(c->fd, buf, (size_t)r, MSG_NOSIGNAL) != r;
		if (lost)
			conn_close(c);
		return;
	}
	for (ssize_t used = 0; used < r;) {
		if (c->pieces > 0 || c->paced) { /* pipelining is not for this backend */
			conn_close(c);
			return;
		}
		long k = msg_feed(&c->req, buf + used, r - used, NULL, NULL);
		if (k < 0) {
			conn_close(c);
			return;
		}
		used += k;
		if (c->req.state != MSG_DONE)
			continue;
		if (conn_answer(c) != 0) {
			conn_close(c);
			return;
		}
		int wants_close = c->req.wants_close;
		msg_reset(&c->req, 0);
		c->req.wants_close = wants_close && c->pieces > 0;
	}
}

static void pace_run(void)
{
	long t = now_ns();
	while (due_first != NULL && due_first->due <= t) {
		struct conn *c = due_first;
		due_first = c->after;
		if (due_first == NULL)
			due_last = NULL;
		if (c->closed) {
			free(c);
			continue;
		}
		char event[512], chunk[600];
		int k = snprintf(event, sizeof event,
			"data: {\"t\":\"%020ld\",\"id\":\"chatcmpl-abc123\",\"object\":\"chat.completion.chunk\","
			"\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"tok\"}}]}\n\n", now_ns());
		int n = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", (unsigned)k, event);
		if (send(c->fd, chunk, (size_t)n, MSG_NOSIGNAL) != n) { /* a reader that far behind is lost */
			c->paced = 0;
			conn_close(c);
			continue;
		}
		c->due += PACE_NS;
		pace_push(c);
	}
}

static void datagrams(int fd)
{
	char buf[2048];
	struct sockaddr_in from;
	for (int i = 0; i < 64; i++) {
		socklen_t size = sizeof from;
		ssize_t r = recvfrom(fd, buf, sizeof buf, 0, (struct sockaddr *)&from, &size);
		if (r < 0)
			return;
		sendto(fd, buf, (size_t)r, 0, (struct sockaddr *)&from, size);
	}
}

static void accept_all(int lfd, int echoes)
{
	for (int i = 0; i < 64; i++) {
		int fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
			return;
		struct conn *c = calloc(1, sizeof *c);
		if (c == NULL) {
			close(fd);
			return;
		}
		c->fd = fd;
		c->echoes = echoes;
		msg_reset(&c->req, 0);
		watch(c, EPOLL_CTL_ADD, EPOLLIN);
	}
}

static int listen_on(int port, int type)
{
	int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (type == SOCK_STREAM) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* accepted sockets inherit it */
	}
	if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || (type == SOCK_STREAM && listen(fd, 4096) != 0)) {
		perror("upstream: listen");
		exit(1);
	}
	return fd;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: upstream PORT\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1UL);
	struct rlimit lim;
	getrlimit(RLIMIT_NOFILE, &lim);
	lim.rlim_cur = lim.rlim_max;
	setrlimit(RLIMIT_NOFILE, &lim);
	prepare_answers();
	epfd = epoll_create1(EPOLL_CLOEXEC);
	static struct conn listener, echo, udp, input; /* markers for the special descriptors */
	int port = atoi(argv[1]);
	listener.fd = listen_on(port, SOCK_STREAM);
	echo.fd = listen_on(port + 1, SOCK_STREAM);
	udp.fd = listen_on(port + 2, SOCK_DGRAM);
	watch(&listener, EPOLL_CTL_ADD, EPOLLIN);
	watch(&echo, EPOLL_CTL_ADD, EPOLLIN);
	watch(&udp, EPOLL_CTL_ADD, EPOLLIN);
	watch(&input, EPOLL_CTL_ADD, EPOLLIN); /* descriptor 0 */
	puts("ready");
	fflush(stdout);
	struct epoll_event events[256];
	for (;;) {
		struct timespec wait = {0, 0}, *limit = NULL;
		if (due_first != NULL) {
			long d = due_first->due - now_ns();
			wait.tv_nsec = d > 0 ? d : 0;
			limit = &wait;
		}
		int n = epoll_pwait2(epfd, events, 256, limit, NULL);
		for (int i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			if (c == &listener || c == &echo) {
				accept_all(c->fd, c == &echo);
			} else if (c == &udp) {
				datagrams(udp.fd);
			} else if (c == &input) {
				char b[64];
				if (read(0, b, sizeof b) <= 0)
					return 0;
			} else if (c->blocked) {
				if (conn_flush(c) != 0)
					conn_close(c);
			} else {
				conn_readable(c);
			}
		}
		pace_run();
	}
}
