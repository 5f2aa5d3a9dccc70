/*
 * echo MODE -port P [-conns N] [-secs S] [-warm S]: the load tool for what is no HTTP.
 *
 *   tcp  each connection sends 32 bytes and waits for them to come back
 *   ws   the same in a binary frame of a WebSocket, after its handshake
 *   udp  the same in a datagram; one that does not come back within a second is an error
 *
 * One thread, one epoll set. It talks with the harness as load does: "start", one JSON object,
 * then its connections stay until standard input ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "hist.h"
#include "ws.h"

#define LOST_NS 1000000000L

enum mode { TCP, WS, UDP };

struct flow {
	int fd;
	int open;   /* the handshake is over, where there is one */
	int got;    /* bytes of the answer so far */
	long since; /* when the message was sent; 0 before the first */
	char head[2048];
	int headn;
};

static enum mode mode;
static int port, conns = 64;
static double secs = 5, warm = 0.3;
static int epfd;
static struct flow *flows;
static struct hist latency;
static long done, errors, window_from, window_to;
static char message[64];
static int message_len, answer_len;

static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void fatal(const char *what)
{
	fprintf(stderr, "echo: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void flow_send(struct flow *f)
{
	f->got = 0;
	f->since = now_ns();
	if (send(f->fd, message, (size_t)message_len, MSG_NOSIGNAL) != message_len)
		fatal("send");
}

static void flow_open(struct flow *f)
{
	int one = 1;
	f->fd = socket(AF_INET, mode == UDP ? SOCK_DGRAM | SOCK_CLOEXEC : SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (f->fd < 0 || connect(f->fd, (struct sockaddr *)&to, sizeof to) != 0)
		fatal("connect");
	if (mode != UDP)
		setsockopt(f->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = f};
	epoll_ctl(epfd, EPOLL_CTL_ADD, f->fd, &e);
	if (mode == WS) {
		if (send(f->fd, WS_REQUEST, sizeof WS_REQUEST - 1, MSG_NOSIGNAL) != (ssize_t)sizeof WS_REQUEST - 1)
			fatal("handshake");
		return;
	}
	f->open = 1;
	flow_send(f);
}

/* Reads the answer to the handshake; nothing comes behind it before a message was sent. */
static void flow_handshake(struct flow *f)
{
	ssize_t r = recv(f->fd, f->head + f->headn, sizeof f->head - 1 - (size_t)f->headn, MSG_DONTWAIT);
	if (r < 0 && errno == EAGAIN)
		return;
	if (r <= 0)
		fatal("handshake ended");
	f->headn += (int)r;
	f->head[f->headn] = 0;
	if (strstr(f->head, "\r\n\r\n") == NULL)
		return;
	if (strncmp(f->head, "HTTP/1.1 101 ", 13) != 0) {
		fprintf(stderr, "echo: no upgrade: %.60s\n", f->head);
		exit(1);
	}
	f->open = 1;
	flow_send(f);
}

static void flow_ready(struct flow *f)
{
	char buf[256];
	if (!f->open) {
		flow_handshake(f);
		return;
	}
	ssize_t r = recv(f->fd, buf, sizeof buf, MSG_DONTWAIT);
	if (r < 0 && errno == EAGAIN)
		return;
	if (r <= 0) {
		if (mode != UDP)
			fatal("connection ended");
		errors++; /* an ICMP error of a datagram sent before */
		return;
	}
	f->got += (int)r;
	if (f->got < answer_len)
		return;
	if (f->got > answer_len)
		fatal("too long an answer");
	long t = now_ns();
	if (t >= window_from && t < window_to) {
		hist_add(&latency, t - f->since);
		done++;
	}
	flow_send(f);
}

/* Sends again what was lost. */
static void flows_overdue(long t)
{
	for (int i = 0; i < conns; i++) {
		if (flows[i].since == 0 || t - flows[i].since < LOST_NS)
			continue;
		errors++;
		if (mode == UDP)
			flow_send(&flows[i]);
	}
}

static void read_args(int argc, char **argv)
{
	static const char *names[] = {"tcp", "ws", "udp"};
	int found = -1;
	for (int i = 0; argc > 1 && i < 3; i++)
		if (strcmp(argv[1], names[i]) == 0)
			found = i;
	for (int i = 2; i + 1 < argc; i += 2) {
		const char *k = argv[i], *v = argv[i + 1];
		if (strcmp(k, "-port") == 0) port = atoi(v);
		else if (strcmp(k, "-conns") == 0) conns = atoi(v);
		else if (strcmp(k, "-secs") == 0) secs = atof(v);
		else if (strcmp(k, "-warm") == 0) warm = atof(v);
		else found = -1;
	}
	if (found < 0 || argc % 2 != 0 || port <= 0 || conns <= 0) {
		fprintf(stderr, "usage: echo tcp|ws|udp -port P [-conns N] [-secs S] [-warm S]\n");
		exit(2);
	}
	mode = (enum mode)found;
}

static void build_message(void)
{
	int n = 0;
	if (mode == WS) { /* a final binary frame of 32 bytes; its mask is zero, so that they come back as they went */
		static const char head[] = {(char)0x82, (char)(0x80 | ECHO_BYTES), 0, 0, 0, 0};
		memcpy(message, head, sizeof head);
		n = sizeof head;
	}
	memset(message + n, 'x', ECHO_BYTES);
	message_len = n + ECHO_BYTES;
	answer_len = mode == WS ? ECHO_BYTES + 2 : ECHO_BYTES;
}

int main(int argc, char **argv)
{
	read_args(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1UL);
	build_message();
	epfd = epoll_create1(EPOLL_CLOEXEC);
	flows = calloc((size_t)conns, sizeof *flows);
	if (flows == NULL)
		return 1;
	for (int i = 0; i < conns; i++)
		flow_open(&flows[i]);
	long checked = now_ns();
	window_from = checked + (long)(warm * 1e9);
	window_to = window_from + (long)(secs * 1e9);
	int started = 0;
	struct epoll_event events[256];
	for (;;) {
		long t = now_ns();
		if (t >= window_to)
			break;
		if (!started && t >= window_from) {
			started = 1;
			puts("start");
			fflush(stdout);
		}
		if (t - checked > LOST_NS / 4) {
			checked = t;
			flows_overdue(t);
		}
		int n = epoll_wait(epfd, events, 256, 1);
		for (int i = 0; i < n; i++)
			flow_ready(events[i].data.ptr);
	}
	double span = (double)(window_to - window_from) / 1e9;
	printf("{\"n\":%ld,\"secs\":%.4f,\"per_sec\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"first50_us\":-1,\"first99_us\":-1,\"errors\":%ld}\n",
		done, span, (double)done / span, hist_us(&latency, 0.5), hist_us(&latency, 0.99), (double)latency.max / 1e3, errors);
	fflush(stdout);
	char b[64];
	while (read(0, b, sizeof b) > 0)
		;
	return 0;
}
