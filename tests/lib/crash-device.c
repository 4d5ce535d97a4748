/*
 * crash-device.c - an engine's device in memory that can show what a power cut would have left
 *
 * One lock; requests are carried out and completed inside submit(), in whatever order the library's threads come. A flush
 * covers what was completed before it, which is everything in the log so far.
 *
 * Replaying keeps the durable image, and for each sector a list of its versions since, newest first; a flush applies the
 * newest of each and empties the lists. Versions point into the log.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crash-device.h"
#include "test.h"

enum { SECTOR = T_CRASH_SECTOR };

/* One entry of the log: a write, or, with len 0, a flush. */
struct entry {
	uint64_t pos, len;
	unsigned char *data;
};

struct t_crash {
	uint64_t bytes;
	pthread_mutex_t lock;
	unsigned char *now, *start;     /* contents; and when logging began, where a replay begins */
	struct entry *log;
	uint64_t nr, room;
	bool logging;
	uint64_t good;                  /* so many more writes and flushes succeed, then all fail with error */
	int error;
	char complaint[128];
};

static void *must(void *p)
{
	if (!p) {
		fprintf(stderr, "crash-device: no memory\n");
		abort();
	}
	return p;
}

struct t_crash *t_crash_create(uint64_t bytes, const void *image)
{
	struct t_crash *c = must(calloc(1, sizeof(*c)));

	c->bytes = bytes;
	c->now = must(calloc(1, bytes));
	c->good = UINT64_MAX;
	pthread_mutex_init(&c->lock, NULL);
	if (image)
		memcpy(c->now, image, bytes);
	return c;
}

void t_crash_free(struct t_crash *c)
{
	for (uint64_t i = 0; i < c->nr; i++)
		free(c->log[i].data);
	free(c->log);
	free(c->now);
	free(c->start);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static struct entry *new_entry(struct t_crash *c)
{
	if (c->nr == c->room) {
		c->room = c->room ? 2 * c->room : 256;
		c->log = must(realloc(c->log, c->room * sizeof(*c->log)));
	}
	c->log[c->nr] = (struct entry) { 0, 0, NULL };
	return &c->log[c->nr++];
}

/* Whether the next write or flush is to fail. */
static bool fails(struct t_crash *c)
{
	if (c->good == UINT64_MAX)
		return false;
	if (!c->good)
		return true;
	c->good--;
	return false;
}

static int64_t carry_out(struct t_crash *c, struct iomap_request *req)
{
	uint64_t len = 0, at = req->pos;

	for (int i = 0; i < req->iovcnt; i++)
		len += req->iov[i].iov_len;
	if (req->pos % SECTOR || len % SECTOR || !len || req->pos > c->bytes || len > c->bytes - req->pos) {
		snprintf(c->complaint, sizeof(c->complaint), "a request of %llu bytes at %llu", (unsigned long long)len,
			 (unsigned long long)req->pos);
		return -EINVAL;
	}
	if (req->op == IOMAP_REQ_WRITE && fails(c))
		return c->error;
	for (int i = 0; i < req->iovcnt; at += req->iov[i++].iov_len) {
		if (req->op == IOMAP_REQ_READ)
			memcpy(req->iov[i].iov_base, c->now + at, req->iov[i].iov_len);
		else
			memcpy(c->now + at, req->iov[i].iov_base, req->iov[i].iov_len);
	}
	if (req->op == IOMAP_REQ_WRITE && c->logging) {
		struct entry *e = new_entry(c);

		*e = (struct entry) { req->pos, len, must(malloc(len)) };
		memcpy(e->data, c->now + req->pos, len);
	}
	return (int64_t)len;
}

static int crash_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	struct t_crash *c = iomap_device_priv(device);

	for (unsigned i = 0; i < n; i++) {
		pthread_mutex_lock(&c->lock);
		reqs[i]->result = carry_out(c, reqs[i]);
		pthread_mutex_unlock(&c->lock);
		reqs[i]->done(reqs[i]);
	}
	return (int)n;
}

static int crash_flush(struct iomap_device *device, struct iomap_request *req)
{
	struct t_crash *c = iomap_device_priv(device);

	pthread_mutex_lock(&c->lock);
	req->result = fails(c) ? c->error : 0;
	if (c->logging && !req->result)
		new_entry(c);
	pthread_mutex_unlock(&c->lock);
	req->done(req);
	return 0;
}

static void crash_destroy(struct iomap_device *device)
{
	(void)device;           /* contents and log belong to the test */
}

struct iomap_device *t_crash_device(struct t_crash *c, bool log)
{
	static const struct iomap_device_ops ops = { .submit = crash_submit, .flush = crash_flush, .destroy = crash_destroy };
	struct iomap_device_info info = { .block = SECTOR, .size = c->bytes };
	struct iomap_device *device;

	c->logging = log;
	if (log && !c->start) {
		c->start = must(malloc(c->bytes));
		memcpy(c->start, c->now, c->bytes);
	}
	if (iomap_device_create(&ops, c, &info, &device)) {
		fprintf(stderr, "crash-device: cannot be created\n");
		abort();
	}
	return device;
}

void t_crash_fail(struct t_crash *c, uint64_t after, int error)
{
	pthread_mutex_lock(&c->lock);
	c->good = after;
	c->error = error;
	pthread_mutex_unlock(&c->lock);
}

uint64_t t_crash_moments(struct t_crash *c)
{
	pthread_mutex_lock(&c->lock);
	uint64_t nr = c->nr;

	pthread_mutex_unlock(&c->lock);
	return nr;
}

const unsigned char *t_crash_bytes(struct t_crash *c)
{
	return c->now;
}

const char *t_crash_complaint(struct t_crash *c)
{
	return c->complaint[0] ? c->complaint : NULL;
}

/* --- images ----------------------------------------------------------------------------------------------- */

/* A sector as one write left it. */
struct version {
	struct version *older;
	const unsigned char *data;
	uint64_t sector;
};

struct t_crash_replay {
	struct t_crash *crash;
	uint64_t moment;
	unsigned char *durable;
	struct version **newest;        /* of each sector, since the last flush; NULL: none */
	struct version *versions;       /* an array of nr, reused after each flush */
	uint64_t nr, room;
};

struct t_crash_replay *t_crash_replay(struct t_crash *c)
{
	struct t_crash_replay *r = must(calloc(1, sizeof(*r)));

	r->crash = c;
	r->durable = must(malloc(c->bytes));
	memcpy(r->durable, c->start, c->bytes);
	r->newest = must(calloc(c->bytes / SECTOR, sizeof(struct version *)));
	/* never moved, since newest points into it: room for the longest stretch without a flush */
	for (uint64_t i = 0, run = 0; i < c->nr; i++) {
		run = c->log[i].len ? run + c->log[i].len / SECTOR : 0;
		if (run > r->room)
			r->room = run;
	}
	r->versions = must(calloc(r->room + 1, sizeof(*r->versions)));
	return r;
}

void t_crash_replay_free(struct t_crash_replay *r)
{
	free(r->durable);
	free(r->newest);
	free(r->versions);
	free(r);
}

static void add_write(struct t_crash_replay *r, const struct entry *e)
{
	for (uint64_t off = 0; off < e->len; off += SECTOR) {
		struct version *v = &r->versions[r->nr++];

		v->sector = (e->pos + off) / SECTOR;
		v->data = e->data + off;
		v->older = r->newest[v->sector];
		r->newest[v->sector] = v;
	}
}

static void add_flush(struct t_crash_replay *r)
{
	for (uint64_t i = 0; i < r->nr; i++) {          /* in the order of writing: the newest comes last */
		memcpy(r->durable + r->versions[i].sector * SECTOR, r->versions[i].data, SECTOR);
		r->newest[r->versions[i].sector] = NULL;
	}
	r->nr = 0;
}

void t_crash_replay_to(struct t_crash_replay *r, uint64_t moment)
{
	for (; r->moment < moment && r->moment < r->crash->nr; r->moment++) {
		const struct entry *e = &r->crash->log[r->moment];

		if (e->len)
			add_write(r, e);
		else
			add_flush(r);
	}
}

uint64_t t_crash_replay_pending(struct t_crash_replay *r)
{
	return r->nr;
}

/* Any version of @v's sector, the durable one (NULL) included, all alike. */
static const struct version *any_version(const struct version *v, uint64_t *random)
{
	uint64_t n = 1;

	for (const struct version *at = v; at; at = at->older)
		n++;
	for (n = t_random_below(random, n); v && n; n--)
		v = v->older;
	return v;
}

void t_crash_image(struct t_crash_replay *r, enum t_crash_how how, uint64_t *random, void *image)
{
	uint64_t one_in = 2 + t_random_below(random, 8);

	memcpy(image, r->durable, r->crash->bytes);
	if (how == T_CRASH_OLDEST)
		return;
	for (uint64_t i = 0; i < r->nr; i++) {
		const struct version *v = &r->versions[i];

		if (r->newest[v->sector] != v)
			continue;               /* each sector once */
		if (how == T_CRASH_RANDOM || (how == T_CRASH_TORN && !t_random_below(random, one_in)))
			v = any_version(v, random);
		else if (how == T_CRASH_LATE)
			v = t_random_below(random, one_in) ? NULL : any_version(v, random);
		if (v)
			memcpy((unsigned char *)image + v->sector * SECTOR, v->data, SECTOR);
	}
}
