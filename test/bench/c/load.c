/*
 * load MODE -port P [options]: the HTTP/1.1 load tools of the bench. One thread, one epoll set.
 *
 *   closed  each connection sends its next request as soon as the last was answered
 *   conn    the same, with a new TCP connection for each request
 *   rate    open loop: requests are due at fixed times (-rate a second, over all connections);
 *           latency runs from the time a request was due, also when no connection was free
 *           then, and requests still unanswered at the end count with their age: a proxy that
 *           stalls cannot hide its stall (no coordinated omission)
 *   paced   opens -conns event streams and reads them; the latency is the delay of each event
 *           from the time stamp that the upstream put into it
 *   idle    opens -conns connections, 64 at a time, with one request on each, and keeps them
 *
 * Options: -conns N, -secs S, -warm S (before the measured window), -path /x, -post BYTES,
 * -expect BYTES (length that every body must have).
 *
 * Talk with the harness, by lines on standard output: "start" as the measured window begins,
 * one JSON object as it ends. Then the connections stay as they are until a line comes on
 * standard input (mode idle answers it with {"alive":N}) or it ends, which ends the tool.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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

#include "hist.h"
#include "wire.h"

#define IDLE_AT_ONCE 64
#define STAMP_DIGITS 20
#define FAILURES_IN_A_ROW 2000
#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum mode { CLOSED, CONN, RATE, PACED, IDLE };

struct slot {
	int fd;      /* -1: not open */
	int index;
	int busy;    /* a request is out */
	int unsent;  /* ... but its connection was not up yet */
	long since;  /* when the request was sent, or was due */
	int match;   /* bytes of the time stamp's name seen */
	int digits;  /* digits of the time stamp seen */
	long stamp;
	struct msg answer;
};

static enum mode mode;
static int port, conns = 64, expect = -1, post;
static double secs = 5, warm = 0.3, rate;
static const char *path = "/";

static char *request;
static size_t request_len;
static int epfd;
static struct slot *slots;
static int *spare, spares;     /* free slots of the open loop */
static struct hist latency, first_byte;
static long done, errors, body_bytes, failures_in_a_row;
static long window_from, window_to; /* 0 until the window is known */
static long first_due, issued;      /* open loop: the schedule's start, and how many went out */
static int idle_next, idle_done;

static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void failure(const char *what)
{
	errors++;
	if (++failures_in_a_row > FAILURES_IN_A_ROW) {
		fprintf(stderr, "load: %d failures in a row, the last: %s: %s\n", FAILURES_IN_A_ROW, what, strerror(errno));
		exit(1);
	}
}

static int in_window(long t) { return window_from != 0 && t >= window_from && t < window_to; }

static void slot_open(struct slot *s)
{
	int one = 1;
	s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s->fd < 0) {
		perror("load: socket");
		exit(1);
	}
	setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (mode == CONN) { /* many source addresses, so that closed connections do not use up the ports */
		struct sockaddr_in from = {.sin_family = AF_INET,
			.sin_addr.s_addr = htonl(0x7f000100u + (unsigned)(s->index % 64) + 1)};
		setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
		if (bind(s->fd, (struct sockaddr *)&from, sizeof from) != 0)
			failure("bind");
	}
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (connect(s->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)
		failure("connect");
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
	epoll_ctl(epfd, EPOLL_CTL_ADD, s->fd, &e);
}

static void slot_watch(struct slot *s, unsigned events)
{
	struct epoll_event e = {.events = events, .data.ptr = s};
	epoll_ctl(epfd, EPOLL_CTL_MOD, s->fd, &e);
}

/* Sends the request. On loopback the connection is up at once nearly always; else it waits for room. */
static int slot_send(struct slot *s)
{
	ssize_t w = send(s->fd, request, request_len, MSG_NOSIGNAL);
	if (w == (ssize_t)request_len) {
		if (s->unsent)
			slot_watch(s, EPOLLIN);
		s->unsent = 0;
		return 0;
	}
	if (w >= 0 || (errno != EAGAIN && errno != ENOTCONN))
		return -1;
	if (!s->unsent)
		slot_watch(s, EPOLLIN | EPOLLOUT);
	s->unsent = 1;
	return 0;
}

/* Starts a request whose latency counts from the given time. */
static void slot_start(struct slot *s, long since)
{
	if (s->fd < 0)
		slot_open(s);
	s->busy = 1;
	s->unsent = 0;
	s->since = since;
	s->match = s->digits = 0;
	msg_reset(&s->answer, 1);
	if (slot_send(s) != 0) {
		failure("send");
		close(s->fd);
		slot_open(s);
		slot_watch(s, EPOLLIN | EPOLLOUT);
		s->unsent = 1;
	}
}

/* Gives the open loop's next due request to the slot, or parks it. */
static void slot_next_due(struct slot *s)
{
	long due = first_due + (long)((double)issued * 1e9 / rate);
	if (due > now_ns()) {
		spare[spares++] = s->index;
		return;
	}
	issued++;
	slot_start(s, due);
}

static void slot_again(struct slot *s)
{
	switch (mode) {
	case RATE:
		slot_next_due(s);
		break;
	case IDLE:
		idle_done++;
		if (idle_next < conns)
			slot_start(&slots[idle_next++], now_ns());
		break;
	default:
		slot_start(s, now_ns());
	}
}

/* The connection broke, or said what is no HTTP: count it and go on with a new one. */
static void slot_broken(struct slot *s)
{
	int was_busy = s->busy;
	close(s->fd);
	s->fd = -1;
	s->busy = 0;
	if (!was_busy)
		return; /* an idle connection may be closed at any time; the next request opens another */
	failure("answer");
	slot_again(s);
}

static void event_seen(long stamp)
{
	long t = now_ns();
	if (!in_window(t))
		return;
	hist_add(&latency, t - stamp);
	done++;
}

/* Finds the upstream's time stamps in the body of a paced stream, however the body was cut. */
static void find_stamps(void *arg, const char *p, long n)
{
	static const char name[] = "\"t\":\"";
	struct slot *s = arg;
	for (long i = 0; i < n; i++) {
		if (s->digits > 0) {
			s->stamp = s->stamp * 10 + (p[i] - '0');
			if (--s->digits == 0)
				event_seen(s->stamp);
		} else if (p[i] == name[s->match]) {
			if (++s->match == (int)sizeof name - 1) {
				s->digits = STAMP_DIGITS;
				s->stamp = 0;
				s->match = 0;
			}
		} else {
			s->match = p[i] == name[0];
		}
	}
}

static void slot_answered(struct slot *s)
{
	long t = now_ns();
	failures_in_a_row = 0;
	if (s->answer.status != 200 || (expect >= 0 && s->answer.body != expect)) {
		errno = 0;
		failure("status or length");
	} else if (mode == IDLE || in_window(t)) {
		hist_add(&latency, t - s->since);
		done++;
		body_bytes += s->answer.body;
	}
	s->busy = 0;
	if (mode == CONN || s->answer.wants_close || s->answer.state == MSG_TO_EOF) {
		close(s->fd);
		s->fd = -1;
	}
	slot_again(s);
}

static void slot_ready(struct slot *s, unsigned events)
{
	static char buf[262144];
	if (s->unsent && (events & EPOLLOUT) && slot_send(s) != 0) {
		slot_broken(s);
		return;
	}
	if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	ssize_t r = recv(s->fd, buf, sizeof buf, 0);
	if (r < 0 && errno == EAGAIN)
		return;
	if (r == 0 && s->busy && s->answer.state == MSG_TO_EOF) {
		slot_answered(s);
		return;
	}
	if (r <= 0 || !s->busy) {
		slot_broken(s);
		return;
	}
	int fresh = s->answer.headn == 0;
	long used = msg_feed(&s->answer, buf, r, mode == PACED ? find_stamps : NULL, s);
	if (used < r) { /* -1, or bytes after the end of the answer */
		slot_broken(s);
		return;
	}
	if (fresh && in_window(s->since))
		hist_add(&first_byte, now_ns() - s->since);
	if (s->answer.state == MSG_DONE)
		slot_answered(s);
}

static void build_request(void)
{
	size_t room = (size_t)post + strlen(path) + 512;
	request = malloc(room);
	if (request == NULL)
		exit(1);
	int n = snprintf(request, room, "%s %s HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: load\r\nAccept: */*\r\n%s",
		post > 0 ? "POST" : "GET", path, mode == CONN ? "Connection: close\r\n" : "");
	if (post > 0) {
		static const char front[] = "{\"model\":\"m\",\"stream\":false,\"messages\":[{\"role\":\"user\",\"content\":\"", back[] = "\"}]}";
		int fill = post - (int)(sizeof front - 1 + sizeof back - 1);
		n += snprintf(request + n, room - (size_t)n, "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", post, front);
		memset(request + n, 'a', (size_t)fill);
		n += fill;
		n += snprintf(request + n, room - (size_t)n, "%s", back);
	} else {
		n += snprintf(request + n, room - (size_t)n, "\r\n");
	}
	request_len = (size_t)n;
}

static void usage(void)
{
	fprintf(stderr, "usage: load closed|conn|rate|paced|idle -port P [-conns N] [-secs S] [-warm S] [-path /x] [-post BYTES] [-expect BYTES] [-rate N]\n");
	exit(2);
}

static void read_args(int argc, char **argv)
{
	static const char *names[] = {"closed", "conn", "rate", "paced", "idle"};
	int found = -1;
	for (int i = 0; argc > 1 && i < 5; i++)
		if (strcmp(argv[1], names[i]) == 0)
			found = i;
	if (found < 0 || argc % 2 != 0)
		usage();
	mode = (enum mode)found;
	for (int i = 2; i + 1 < argc; i += 2) {
		const char *k = argv[i], *v = argv[i + 1];
		if (strcmp(k, "-port") == 0) port = atoi(v);
		else if (strcmp(k, "-conns") == 0) conns = atoi(v);
		else if (strcmp(k, "-secs") == 0) secs = atof(v);
		else if (strcmp(k, "-warm") == 0) warm = atof(v);
		else if (strcmp(k, "-path") == 0) path = v;
		else if (strcmp(k, "-post") == 0) post = atoi(v);
		else if (strcmp(k, "-expect") == 0) expect = atoi(v);
		else if (strcmp(k, "-rate") == 0) rate = atof(v);
		else usage();
	}
	if (port <= 0 || conns <= 0 || (mode == RATE && rate <= 0) || (post > 0 && post < 128))
		usage();
}

static void open_all(void)
{
	long t = now_ns();
	first_due = t;
	if (mode == IDLE) {
		int n = conns < IDLE_AT_ONCE ? conns : IDLE_AT_ONCE;
		while (idle_next < n)
			slot_start(&slots[idle_next++], t);
		return;
	}
	for (int i = 0; i < conns; i++) {
		if (mode == RATE) {
			slot_open(&slots[i]);
			spare[spares++] = i;
		} else {
			slot_start(&slots[i], now_ns());
		}
		if (mode == PACED)
			usleep(33); /* so that the streams' events do not all fall together */
	}
}

/* Nanoseconds until something other than a socket needs attention. */
static long until_next(long t)
{
	long next = t + 100000000L;
	if (mode != IDLE) {
		long edge = t < window_from ? window_from : window_to;
		next = edge < next ? edge : next;
	}
	if (mode == RATE && spares > 0) {
		long due = first_due + (long)((double)issued * 1e9 / rate);
		next = due < next ? due : next;
	}
	return next > t ? next - t : 0;
}

static void report(long from, long to)
{
	if (mode == RATE) { /* what is unanswered, or never went out, has at least this age */
		for (int i = 0; i < conns; i++)
			if (slots[i].busy && slots[i].since >= from)
				hist_add(&latency, to - slots[i].since);
		for (;; issued++) {
			long due = first_due + (long)((double)issued * 1e9 / rate);
			if (due >= to)
				break;
			if (due >= from)
				hist_add(&latency, to - due);
		}
	}
	double span = (double)(to - from) / 1e9;
	printf("{\"n\":%ld,\"secs\":%.4f,\"per_sec\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,"
		"\"first50_us\":%.1f,\"first99_us\":%.1f,\"errors\":%ld,\"body_bytes\":%ld}\n",
		done, span, (double)done / span, hist_us(&latency, 0.5), hist_us(&latency, 0.99), (double)latency.max / 1e3,
		hist_us(&first_byte, 0.5), hist_us(&first_byte, 0.99), errors, body_bytes);
	fflush(stdout);
}

/* Waits for the harness: it reads the processes' times and memory now, with all connections in place. */
static void stay(void)
{
	char b[64];
	while (read(0, b, sizeof b) > 0) {
		int alive = 0;
		for (int i = 0; i < conns; i++) {
			char c;
			if (slots[i].fd >= 0 && !(recv(slots[i].fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0))
				alive++;
		}
		printf("{\"alive\":%d}\n", alive);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	read_args(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_TIMERSLACK, 1UL);
	struct rlimit lim;
	getrlimit(RLIMIT_NOFILE, &lim);
	lim.rlim_cur = lim.rlim_max;
	setrlimit(RLIMIT_NOFILE, &lim);
	build_request();
	epfd = epoll_create1(EPOLL_CLOEXEC);
	slots = calloc((size_t)conns, sizeof *slots);
	spare = calloc((size_t)conns, sizeof *spare);
	if (slots == NULL || spare == NULL)
		return 1;
	for (int i = 0; i < conns; i++) {
		slots[i].fd = -1;
		slots[i].index = i;
	}
	open_all();
	long began = now_ns();
	window_from = began + (long)(warm * 1e9);
	window_to = window_from + (long)(secs * 1e9);
	int started = 0;
	struct epoll_event events[256];
	for (;;) {
		long t = now_ns();
		if (mode == IDLE ? idle_done == conns : t >= window_to)
			break;
		if (!started && (mode == IDLE || t >= window_from)) {
			started = 1;
			puts("start");
			fflush(stdout);
		}
		long wait = until_next(t);
		struct timespec ts = {wait / 1000000000L, wait % 1000000000L};
		int n = epoll_pwait2(epfd, events, 256, &ts, NULL);
		for (int i = 0; i < n; i++)
			slot_ready(events[i].data.ptr, events[i].events);
		while (mode == RATE && spares > 0 && first_due + (long)((double)issued * 1e9 / rate) <= now_ns())
			slot_next_due(&slots[spare[--spares]]);
	}
	report(mode == IDLE ? began : window_from, mode == IDLE ? now_ns() : window_to);
	stay();
	return 0;
}
