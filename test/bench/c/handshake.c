/*
 * handshake full|resumed -port P [-conns N] [-secs S] [-warm S] [-path /x] [-expect BYTES]:
 * a new TLS connection for each request, N at a time, with a full handshake each or resuming
 * the session of the thread's last connection. One thread a connection; TLS 1.3 where the
 * proxy speaks it, else 1.2, with X25519. It talks with the harness as load does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "hist.h"
#include "wire.h"

struct worker {
	pthread_t thread;
	int index;
	SSL_CTX *ctx;
	SSL_SESSION *session; /* of the last connection, mode resumed */
	long done, errors, fresh;
	struct hist latency;
};

static int resumed, port, conns = 64, expect = -1;
static double secs = 5, warm = 0.5;
static const char *path = "/";
static char request[512];
static int request_len;
static long window_from, window_to;

static long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
	struct worker *w = SSL_get_app_data(ssl);
	SSL_SESSION_free(w->session);
	w->session = session;
	return 1; /* the reference is ours now */
}

/* Many source addresses, so that closed connections do not use up the ports. */
static int dial(const struct worker *w)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct timeval limit = {5, 0};
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000100u + (unsigned)(w->index % 64) + 1)};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&from, sizeof from) == 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
		return fd;
	close(fd);
	return -1;
}

/* One request over the connection; 0 when the whole answer came. */
static int ask(SSL *ssl)
{
	static __thread struct msg answer;
	char buf[16384];
	if (SSL_connect(ssl) != 1 || SSL_write(ssl, request, request_len) != request_len)
		return -1;
	msg_reset(&answer, 1);
	while (answer.state != MSG_DONE) {
		int r = SSL_read(ssl, buf, sizeof buf);
		if (r <= 0 || msg_feed(&answer, buf, r, NULL, NULL) != r)
			return -1;
	}
	return answer.status == 200 && (expect < 0 || answer.body == expect) ? 0 : -1;
}

/* A whole connection: 0 when it went well. */
static int connection(struct worker *w, int *reused)
{
	int fd = dial(w);
	if (fd < 0)
		return -1;
	SSL *ssl = SSL_new(w->ctx);
	SSL_set_app_data(ssl, w);
	SSL_set_fd(ssl, fd);
	SSL_set_tlsext_host_name(ssl, "bench.example");
	if (resumed && w->session != NULL)
		SSL_set_session(ssl, w->session);
	int bad = ask(ssl);
	*reused = SSL_session_reused(ssl);
	if (!bad)
		SSL_shutdown(ssl);
	SSL_free(ssl);
	close(fd);
	ERR_clear_error();
	return bad;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	long bad_in_a_row = 0;
	for (long t = now_ns(); t < window_to && bad_in_a_row < 100;) {
		int primed = !resumed || w->session != NULL, reused = 0, bad = connection(w, &reused);
		long end = now_ns();
		bad_in_a_row = bad ? bad_in_a_row + 1 : 0;
		if (bad)
			w->errors++;
		else if (primed && end >= window_from && end < window_to) {
			w->done++;
			w->fresh += !reused;
			hist_add(&w->latency, end - t);
		}
		t = end;
	}
	return NULL;
}

static void prepare(struct worker *w, int index)
{
	w->index = index;
	w->ctx = SSL_CTX_new(TLS_client_method());
	SSL_CTX_set_min_proto_version(w->ctx, TLS1_2_VERSION);
	SSL_CTX_set1_groups_list(w->ctx, "X25519:P-256"); /* the latter for the certificate, in TLS 1.2 */
	SSL_CTX_set_verify(w->ctx, SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_session_cache_mode(w->ctx, resumed ? SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL : SSL_SESS_CACHE_OFF);
	if (resumed)
		SSL_CTX_sess_set_new_cb(w->ctx, keep_session);
}

static void read_args(int argc, char **argv)
{
	int bad = argc < 2 || argc % 2 != 0 || (strcmp(argv[1], "full") != 0 && strcmp(argv[1], "resumed") != 0);
	resumed = !bad && strcmp(argv[1], "resumed") == 0;
	for (int i = 2; i + 1 < argc; i += 2) {
		const char *k = argv[i], *v = argv[i + 1];
		if (strcmp(k, "-port") == 0) port = atoi(v);
		else if (strcmp(k, "-conns") == 0) conns = atoi(v);
		else if (strcmp(k, "-secs") == 0) secs = atof(v);
		else if (strcmp(k, "-warm") == 0) warm = atof(v);
		else if (strcmp(k, "-path") == 0) path = v;
		else if (strcmp(k, "-expect") == 0) expect = atoi(v);
		else bad = 1;
	}
	if (bad || port <= 0 || conns <= 0) {
		fprintf(stderr, "usage: handshake full|resumed -port P [-conns N] [-secs S] [-warm S] [-path /x] [-expect BYTES]\n");
		exit(2);
	}
}

static void sleep_until(long t)
{
	struct timespec ts = {t / 1000000000L, t % 1000000000L};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

int main(int argc, char **argv)
{
	read_args(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	request_len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: bench.example\r\nConnection: close\r\n\r\n", path);
	struct worker *workers = calloc((size_t)conns, sizeof *workers);
	if (workers == NULL)
		return 1;
	window_from = now_ns() + (long)(warm * 1e9);
	window_to = window_from + (long)(secs * 1e9);
	for (int i = 0; i < conns; i++) {
		prepare(&workers[i], i);
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
			return 1;
	}
	sleep_until(window_from);
	puts("start");
	fflush(stdout);
	static struct hist all;
	long done = 0, errors = 0, fresh = 0;
	for (int i = 0; i < conns; i++) {
		struct worker *w = &workers[i];
		pthread_join(w->thread, NULL);
		done += w->done;
		errors += w->errors;
		fresh += w->fresh;
		hist_merge(&all, &w->latency);
	}
	double span = (double)(window_to - window_from) / 1e9;
	if (resumed && fresh * 20 > done) { /* what was asked for was not measured */
		fprintf(stderr, "handshake: %ld of %ld sessions were not resumed\n", fresh, done);
		return 1;
	}
	printf("{\"n\":%ld,\"secs\":%.4f,\"per_sec\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"first50_us\":-1,\"first99_us\":-1,\"errors\":%ld}\n",
		done, span, (double)done / span, hist_us(&all, 0.5), hist_us(&all, 0.99), (double)all.max / 1e3, errors);
	fflush(stdout);
	char b[64];
	while (read(0, b, sizeof b) > 0)
		;
	return 0;
}
