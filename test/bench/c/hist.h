/*
 * hist.h: a log-linear histogram of nanoseconds.
 *
 * 128 steps for each power of two, so a value is known to better than 1 %.
 * One histogram takes 60 KiB whatever it is fed, so recording never allocates.
 */
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include <stdint.h>

#define HIST_SUB_BITS 7
#define HIST_SUB (1 << HIST_SUB_BITS)
#define HIST_SLOTS ((64 - HIST_SUB_BITS + 1) * HIST_SUB)

struct hist {
	uint64_t total;
	int64_t max;
	uint64_t slot[HIST_SLOTS];
};

static inline int hist_index(uint64_t v)
{
	if (v < HIST_SUB)
		return (int)v;
	int exp = 63 - __builtin_clzll(v);
	int sub = (int)(v >> (exp - HIST_SUB_BITS)) & (HIST_SUB - 1);
	return (exp - HIST_SUB_BITS + 1) * HIST_SUB + sub;
}

/* The smallest value that falls into the slot. */
static inline int64_t hist_floor(int index)
{
	if (index < HIST_SUB)
		return index;
	int exp = index / HIST_SUB + HIST_SUB_BITS - 1;
	uint64_t sub = (uint64_t)(index % HIST_SUB);
	return (int64_t)((((uint64_t)HIST_SUB + sub)) << (exp - HIST_SUB_BITS));
}

static inline void hist_add(struct hist *h, int64_t ns)
{
	if (ns < 0)
		ns = 0;
	if (ns > h->max)
		h->max = ns;
	h->slot[hist_index((uint64_t)ns)]++;
	h->total++;
}

static inline void hist_merge(struct hist *h, const struct hist *from)
{
	for (int i = 0; i < HIST_SLOTS; i++)
		h->slot[i] += from->slot[i];
	h->total += from->total;
	if (from->max > h->max)
		h->max = from->max;
}

/* The value below which the share q (0..1) of all records lies, in microseconds; -1 when there are none. */
static inline double hist_us(const struct hist *h, double q)
{
	if (h->total == 0)
		return -1;
	uint64_t want = (uint64_t)(q * (double)h->total), seen = 0;
	if (want >= h->total)
		want = h->total - 1;
	for (int i = 0; i < HIST_SLOTS; i++) {
		seen += h->slot[i];
		if (seen > want)
			return (double)hist_floor(i) / 1e3;
	}
	return (double)h->max / 1e3;
}

#endif
